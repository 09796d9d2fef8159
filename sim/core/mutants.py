"""stub"""
MUTANTS = {}
