from paceline.engines.awaited_hosts import awaited, how_hosts_come


def test_a_run_says_how_hosts_come_and_why_some_were_turned_away() -> None:
    how = how_hosts_come("hosts", "10.0.0.1:7411")
    assert awaited(1, 2, (), 0.0, how, ["another Python"]) == (
        "waits for hosts: 1 of 2 are there (`paceline agent 10.0.0.1:7411 --token-file FILE` on a machine adds it); "
        "turned away: another Python"
    )
    assert awaited(0, 1, (), 0.0, how_hosts_come("ray", "10.0.0.1:7411")) == (
        "waits for hosts: 0 of 1 are there (--engine ray brings them)"
    )


def test_an_adopted_run_says_how_long_it_waits_for_the_hosts_that_carried_its_roles() -> None:
    assert awaited(1, 1, {"b"}, 37.6, "") == "waits up to 38 s for b: roles of the run may live there"
    assert "; b carried roles of the run and may return" in awaited(0, 1, {"b"}, 37.6, "")
