"""What must hold of whole nodes, one file each, with the section of Ongaro's thesis or the promise it is about."""
