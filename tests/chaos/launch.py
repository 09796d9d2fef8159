"""Start one broker in its place: the program that `ChaosCluster` runs in front of ``raftmq``.

``python launch.py PLACES COMMAND... broker start --broker-id N ...`` reads place N from a JSON file, changes the command accordingly and executes
it in this process, so the started process is the broker. Invariant: it imports only the standard library, because it precedes each start.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

LISTEN = ("--listen", "--peer-listen", "--http-listen")
NUMBER = "--broker-id"
MODULE = ("-m", "raftmq")


def placed(command: list[str], place: dict[str, object]) -> list[str]:
    """Return the command with the listen addresses, arguments and program of the place, and with a broker id only if the place has one."""
    if not place["is_numbered"]:
        at = command.index(NUMBER)
        command = command[:at] + command[at + 2 :]
    if place["program"]:
        at = command.index(MODULE[0])
        assert tuple(command[at : at + 2]) == MODULE
        command = [*command[:at], str(place["program"]), *command[at + 2 :]]
    host = place["bind_host"]
    changed = [
        f"{host}:{word.rpartition(':')[2]}" if host and before in LISTEN else word
        for before, word in zip(["", *command], command, strict=False)
    ]
    return [*place["enter"], *changed, *place["arguments"]]  # type: ignore[misc]  # lists of strings, from our own JSON


def main() -> None:
    """Replace this process with the broker."""
    places_path, *command = sys.argv[1:]
    broker_id = command[command.index(NUMBER) + 1]
    place = json.loads(Path(places_path).read_bytes())[broker_id]
    for name, value in place["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.environ.update(place["environment"])
    if place["data_dir"]:  # on a volume: a link leads there from the cluster's directory
        data_dir = Path(command[command.index("--data-dir") + 1])
        Path(place["data_dir"]).mkdir(exist_ok=True)
        if not data_dir.is_symlink():
            data_dir.symlink_to(place["data_dir"])
    arguments = placed(command, place)
    os.execvp(arguments[0], arguments)


if __name__ == "__main__":
    main()
