"""Each row of the table of identities in the operations guide has a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_IDENTITY = "tests/broker/test_identity.py"
_BOOTSTRAP = "tests/broker/cluster/test_bootstrap.py"
_STALE = "tests/broker/test_stale_directory.py"
_RENEWAL = "tests/broker/test_mark_renewal.py"
_READINESS = "tests/broker/test_readiness.py"
_START = "tests/e2e/test_broker_start.py"

ROWS = {
    "The directory was renamed": (
        _IDENTITY,
        "test_a_lone_broker_may_be_renamed_and_get_other_addresses_and_another_label",
    ),
    "Another address": (_IDENTITY, "test_running_clients_follow_brokers_that_all_move_one_after_the_other"),
    "All brokers got other addresses": (
        _IDENTITY,
        "test_brokers_that_all_moved_say_whom_they_miss_and_meet_at_a_named_address",
    ),
    "Another `--host`": (_IDENTITY, "test_another_host_label_has_replicas_moved_apart"),
    "Two directories were swapped": (
        _IDENTITY,
        "test_swapped_directories_are_each_others_brokers_at_each_others_addresses",
    ),
    "A directory is started with another": (
        _IDENTITY,
        "test_a_directory_of_another_broker_than_the_configured_one_is_refused",
    ),
    "Two brokers are started on one directory": (_START, "test_a_second_broker_on_the_same_directory_is_refused"),
    "One `broker_id` is given to two": (
        "tests/broker/services/test_nodes.py",
        "test_the_id_of_a_running_node_is_not_given_away",
    ),
    "A `broker_id` is requested": (_IDENTITY, "test_the_number_of_a_broker_whose_connection_broke_is_not_given_away"),
    "Empty directory, `--join`, the `broker_id`": (
        "tests/e2e/test_repair.py",
        "test_a_broker_whose_disk_was_wiped_gets_all_its_replicas_again",
    ),
    "The same while partitions": (_READINESS, "test_a_node_that_waits_to_replace_a_lost_disk_reports_the_reason"),
    "The same while the broker is drained": (
        _IDENTITY,
        "test_a_broker_that_is_wiped_while_it_is_drained_goes_on_to_be_drained",
    ),
    "The same while a replica moves": (
        _IDENTITY,
        "test_a_broker_that_is_wiped_while_a_replica_moves_to_it_gets_it_again",
    ),
    "Empty directory, `--join`, no `broker_id`, the address": (
        _BOOTSTRAP,
        "test_an_empty_directory_at_a_known_address_is_refused_with_advice_to_replace_the_lost_disk",
    ),
    "Empty directory, `--join`, no `broker_id`, another address": (
        _IDENTITY,
        "test_a_wiped_broker_at_another_address_is_a_new_one_beside_the_dead_one",
    ),
    "Empty directory, `--bootstrap` beside": (
        _BOOTSTRAP,
        "test_bootstrapping_is_refused_when_a_known_broker_is_in_a_cluster",
    ),
    "Empty directory, `--bootstrap` alone": (_BOOTSTRAP, "test_two_clusters_at_each_others_addresses_are_reported"),
    "Empty directory of a lone broker": (
        _IDENTITY,
        "test_a_lone_broker_without_its_disk_forms_another_cluster_that_running_clients_refuse",
    ),
    "The directory of a removed broker": (_READINESS, "test_a_node_whose_disk_was_replaced_is_refused_permanently"),
    "The directory of another cluster": (
        _START,
        "test_joining_another_cluster_with_an_existing_data_directory_names_both_clusters",
    ),
    "An older copy of the directory, whose": (
        "tests/e2e/test_stale_directory.py",
        "test_an_older_copy_and_a_lagging_broker_do_not_form_a_majority",
    ),
    "An older copy, whose original was not started": (
        _RENEWAL,
        "test_a_copy_whose_original_renewed_its_mark_is_refused_although_the_original_was_never_restarted",
    ),
    "A copy that runs beside": (_STALE, "test_a_second_process_of_a_directory_is_refused_and_the_first_goes_on"),
    "Copies of all brokers": (
        _IDENTITY,
        "test_copies_of_all_brokers_elsewhere_are_kept_out_while_the_originals_run",
    ),
    "A copy of a lone broker": (_IDENTITY, "test_a_copy_of_a_lone_broker_that_is_told_the_original_is_refused"),
    "Snapshots of all brokers": (_RENEWAL, "test_all_directories_of_one_snapshot_start_together"),
    "Metadata recovered": (_RENEWAL, "test_metadata_that_is_older_than_the_marks_accepts_them"),
    "Only `node.mdb` is lost": (_START, "test_a_broker_whose_registry_is_lost_refuses_to_start_and_keeps_its_replicas"),
    "An order names a broker": (
        _IDENTITY,
        "test_orders_for_a_broker_with_a_refused_directory_are_refused_or_done_without_it",
    ),
}
"""By the beginning of each row, the test of it."""


CLAUSES = {
    "If the partition has only two replicas, the broker waits until the move [is given up]": (
        "tests/broker/services/test_nodes.py",
        "test_a_wiped_target_of_a_move_of_two_replicas_waits_until_the_move_is_given_up",
    ),
    "`--replace-lost` gives the old disk up": (
        "tests/broker/services/test_nodes.py",
        "test_a_disk_is_given_up_only_with_a_remaining_majority_or_on_an_operators_order",
    ),
    "`--bootstrap` beside `--join`, or with `cluster_id`": (
        _BOOTSTRAP,
        "test_a_broker_with_a_cluster_id_neither_forms_nor_joins_another_cluster",
    ),
    "The directory of a removed broker, or of one whose place was taken": (
        "tests/e2e/test_broker_removal.py",
        "test_a_dead_broker_is_removed_and_its_replicas_are_rebuilt_on_the_others",
    ),
    "The copy is kept out, and refused as above within 10 minutes": (
        _RENEWAL,
        "test_a_copy_of_the_latest_moments_is_kept_out_and_refused_after_the_next_renewal",
    ),
    "exchanges its directory with another broker, comes back with an empty disk, or is copied": (
        "tests/broker/test_identity_under_orders.py",
        "test_an_order_is_carried_out_whatever_happens_to_the_identity_of_its_broker",
    ),
}
"""By a clause that the test of its row does not check, the test of it."""


def section() -> str:
    text = (ROOT / "docs/guides/operations.md").read_text()
    return text.split("## Directories, addresses and numbers", 1)[1].split("\n## ", 1)[0]


def rows() -> list[str]:
    return [line.split("|")[1].strip() for line in section().splitlines() if line.startswith("| ")][1:]


def test_every_row_is_listed_once() -> None:
    found = rows()
    assert len(found) == len(ROWS)
    for beginning, row in zip(ROWS, found, strict=True):
        assert row.startswith(beginning)


def test_every_clause_is_in_the_section() -> None:
    text = " ".join(section().split())
    assert [clause for clause in CLAUSES if clause not in text] == []


@pytest.mark.parametrize("beginning", [*ROWS, *CLAUSES])
def test_the_test_of_the_row_exists(beginning: str) -> None:
    path, name = {**ROWS, **CLAUSES}[beginning]
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
