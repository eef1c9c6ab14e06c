"""The handshake: two processes prove that they know the token, and do not send it."""

from __future__ import annotations

import hmac
import random

import pytest

from paceline.errors import AuthenticationError, RefusedFrameError, TransportError
from paceline.messages import Ok
from paceline.wire import handshake as wire
from paceline.wire.handshake import (
    Challenge,
    ClientHandshake,
    Farewell,
    Hello,
    LaneName,
    Offer,
    Proof,
    ServerHandshake,
    check_node,
    decode_control,
    encode_control,
    is_control,
)
from paceline.wire.headers import encode_header
from paceline.wire.token import VERSION, TicketGate, make_ticket

TOKEN = bytes(range(32))
OTHER = bytes(range(1, 33))


def answer_of(server: ServerHandshake, frame: bytes) -> bytes:
    answer = server.receive(frame)
    assert answer is not None
    return answer


def run(client: ClientHandshake, server: ServerHandshake, lane: LaneName = "tcp") -> list[bytes]:
    """Run one handshake; return all its frames in order."""
    frames = [client.hello()]
    frames.append(answer_of(server, frames[-1]))
    proof = client.receive(frames[-1])
    assert proof is not None
    frames.append(proof)
    frames.append(answer_of(server, proof))
    assert client.receive(frames[-1]) is None
    assert client.accepted is not None
    frames.append(client.choose(lane))
    assert server.receive(frames[-1]) is None
    return frames


def test_both_sides_learn_who_the_other_is() -> None:
    client, server = ClientHandshake("worker-0/a1", TOKEN), ServerHandshake("server-1/b2", TOKEN)
    run(client, server)
    assert client.peer == "server-1/b2"
    assert server.peer == "worker-0/a1"


def test_no_peer_is_proven_before_the_end() -> None:
    client, server = ClientHandshake("w", TOKEN), ServerHandshake("s", TOKEN)
    challenge = answer_of(server, client.hello())
    assert server.peer is None
    proof = client.receive(challenge)
    assert client.peer is None
    assert proof is not None
    welcome = answer_of(server, proof)
    assert client.receive(welcome) is None
    assert client.peer is None
    assert server.peer is None
    server.receive(client.choose("tcp"))
    assert client.peer == "s"
    assert server.peer == "w"


OFFER = Offer("a-name", bytes(32))


def test_the_client_learns_the_offer_and_the_server_the_choice() -> None:
    client, server = ClientHandshake("w", TOKEN), ServerHandshake("s", TOKEN, offer=OFFER)
    run(client, server, "local")
    assert client.accepted == wire.Accepted(OFFER)
    assert server.lane == "local"


@pytest.mark.parametrize("lane", ["local", "sealed", "plain"])
def test_a_lane_that_was_not_offered_is_refused(lane: wire.LaneName) -> None:
    server = ServerHandshake("s", TOKEN)
    with pytest.raises(RefusedFrameError, match="not offered"):
        run(ClientHandshake("w", TOKEN), server, lane)
    assert server.peer is None


@pytest.mark.parametrize("secrets", [(bytes(31), bytes(32)), (bytes(32), bytes(31))])
def test_an_offer_of_a_plain_stream_with_an_incomplete_secret_is_refused(secrets: tuple[bytes, bytes]) -> None:
    server = ServerHandshake("s", TOKEN, plain=wire.StreamOffer("127.0.0.1", 1, *secrets))
    with pytest.raises(RefusedFrameError, match="32 bytes"):
        run(ClientHandshake("w", TOKEN), server, "plain")
    assert server.peer is None


def test_a_lane_is_not_chosen_before_the_proof() -> None:
    server = ServerHandshake("s", TOKEN, offer=OFFER)
    server.receive(ClientHandshake("w", TOKEN).hello())
    with pytest.raises(RefusedFrameError, match="out of order"):
        server.receive(encode_control(wire.Lane("local")))
    assert server.peer is None


def test_an_offer_with_an_incomplete_nonce_is_refused() -> None:
    client = ClientHandshake("w", TOKEN)
    server = ServerHandshake("s", TOKEN, offer=Offer("a-name", bytes(8)))
    with pytest.raises(RefusedFrameError, match="nonce"):
        run(client, server)
    assert client.accepted is None


def test_token_check_by_the_client_stops_an_impostor_that_listens() -> None:
    client, server = ClientHandshake("w", TOKEN), ServerHandshake("s", OTHER)
    with pytest.raises(AuthenticationError, match="token"):
        client.receive(answer_of(server, client.hello()))
    assert client.peer is None


def test_token_check_by_the_server_stops_a_client_with_another_token() -> None:
    client, server = ClientHandshake("w", TOKEN), ServerHandshake("s", TOKEN)
    server.receive(client.hello())
    with pytest.raises(AuthenticationError, match="token"):
        server.receive(encode_control(Proof(bytes(32))))
    assert server.peer is None


@pytest.mark.parametrize("nbytes", [0, 31, 32, 33])
def test_token_check_refuses_proofs_of_any_length(nbytes: int) -> None:
    server = ServerHandshake("s", TOKEN)
    server.receive(ClientHandshake("w", TOKEN).hello())
    with pytest.raises(AuthenticationError):
        server.receive(encode_control(Proof(bytes(nbytes))))


def test_token_check_refuses_the_servers_own_proof_sent_back() -> None:
    server = ServerHandshake("s", TOKEN)
    answer = decode_control(answer_of(server, ClientHandshake("w", OTHER).hello()))
    assert isinstance(answer, Challenge)
    with pytest.raises(AuthenticationError):
        server.receive(encode_control(Proof(answer.proof)))


def test_token_check_refuses_a_recorded_handshake() -> None:
    frames = run(ClientHandshake("w", TOKEN), ServerHandshake("s", TOKEN))
    server = ServerHandshake("s", TOKEN)
    server.receive(frames[0])
    with pytest.raises(AuthenticationError):
        server.receive(frames[2])


def test_token_check_binds_the_proof_to_both_names() -> None:
    nonce = bytes(32)
    honest = ClientHandshake("w", TOKEN, nonce=nonce)
    server = ServerHandshake("s", TOKEN, nonce=nonce)
    proof = honest.receive(answer_of(server, honest.hello()))
    assert proof is not None
    victim = ServerHandshake("s", TOKEN, nonce=nonce)
    victim.receive(encode_control(Hello("somebody-else", nonce)))
    with pytest.raises(AuthenticationError):
        victim.receive(proof)


def test_token_check_compares_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", spy)
    run(ClientHandshake("w", TOKEN), ServerHandshake("s", TOKEN))
    assert TicketGate(TOKEN, 5000).admits(*make_ticket(TOKEN, 5000))
    assert len(compared) == 3


def test_the_token_is_in_no_frame() -> None:
    frames = run(ClientHandshake("w", TOKEN), ServerHandshake("s", TOKEN))
    everything = b"".join(frames) + "".join(make_ticket(TOKEN, 5000)).encode()
    for start in range(len(TOKEN) - 7):
        assert TOKEN[start : start + 8] not in everything
    assert TOKEN.hex().encode() not in everything


def test_another_version_is_refused_and_named() -> None:
    hello = encode_control(Hello("w", bytes(32)), version=VERSION + 1)
    with pytest.raises(RefusedFrameError) as refused:
        ServerHandshake("s", TOKEN).receive(hello)
    assert refused.value.rule == "version"
    assert "install" in refused.value.detail
    answer = encode_control(Farewell("version", ""), version=VERSION + 1)
    with pytest.raises(RefusedFrameError) as refused:
        ClientHandshake("w", TOKEN).receive(answer)
    assert refused.value.rule == "version"


def test_the_client_gets_the_rule_of_a_refusal() -> None:
    with pytest.raises(AuthenticationError, match="no such job"):
        ClientHandshake("w", TOKEN).receive(encode_control(Farewell("token", "no such job")))
    with pytest.raises(RefusedFrameError) as refused:
        ClientHandshake("w", TOKEN).receive(encode_control(Farewell("node", "bad name")))
    assert refused.value.rule == "node"


def test_frames_out_of_order_end_the_handshake() -> None:
    client, server = ClientHandshake("w", TOKEN), ServerHandshake("s", TOKEN)
    for frame in (encode_control(Proof(bytes(32))), encode_control(wire.Accepted()), encode_control(wire.Lane("tcp"))):
        with pytest.raises(RefusedFrameError, match="out of order"):
            ServerHandshake("s", TOKEN).receive(frame)
    with pytest.raises(RefusedFrameError, match="out of order"):
        client.receive(encode_control(wire.Accepted()))
    frames = run(ClientHandshake("w", TOKEN), server)
    with pytest.raises(RefusedFrameError, match="out of order"):
        server.receive(frames[0])
    assert server.peer is None


def test_a_failed_handshake_cannot_be_continued() -> None:
    server = ServerHandshake("s", TOKEN)
    client = ClientHandshake("w", TOKEN)
    proof = client.receive(answer_of(server, client.hello()))
    assert proof is not None
    with pytest.raises(AuthenticationError):
        server.receive(encode_control(Proof(bytes(32))))
    with pytest.raises(RefusedFrameError, match="out of order"):
        server.receive(proof)


@pytest.mark.parametrize("nbytes", [0, 31, 33])
def test_a_nonce_of_another_length_is_refused(nbytes: int) -> None:
    with pytest.raises(RefusedFrameError):
        ServerHandshake("s", TOKEN).receive(encode_control(Hello("w", bytes(nbytes))))


@pytest.mark.parametrize("node", ["", " ", "a b", "a\n", "ä", "x" * 129, "../../etc passwd"])
def test_node_ids_are_checked_where_they_arrive(node: str) -> None:
    with pytest.raises(RefusedFrameError) as refused:
        ServerHandshake("s", TOKEN).receive(encode_control(Hello(node, bytes(32))))
    assert refused.value.rule == "node"
    assert check_node("worker-0/5f2c81#1._") == "worker-0/5f2c81#1._"


def test_a_message_is_not_mistaken_for_a_control_frame() -> None:
    assert is_control(ClientHandshake("w", TOKEN).hello())
    assert not is_control(encode_header(Ok(1)))
    assert not is_control(b"")


def test_twenty_thousand_mutated_control_frames_prove_no_peer() -> None:
    rng = random.Random(7)
    client = ClientHandshake("w", OTHER)
    frames = [client.hello(), encode_control(Proof(bytes(32))), encode_control(Farewell("x", "y"))]
    for _ in range(20_000):
        server = ServerHandshake("s", TOKEN)
        for _ in range(2):
            broken = bytearray(rng.choice(frames))
            for _ in range(rng.randrange(3)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            try:
                server.receive(bytes(broken[: rng.choice((len(broken), rng.randrange(len(broken) + 1)))]))
            except TransportError:
                break
        assert server.peer is None


# ---------------------------------------------------------------- sealed connections

SEALED = wire.StreamOffer("10.0.0.1", 5000, bytes(32), bytes(range(32)))


def sealed_pair(*, insecure_blocks: bool = False) -> tuple[ClientHandshake, ServerHandshake]:
    client = ClientHandshake("w", TOKEN, insecure_blocks=insecure_blocks)
    server = ServerHandshake("s", TOKEN, sealed=SEALED, insecure_blocks=insecure_blocks)
    run(client, server, "sealed")
    return client, server


def test_both_sides_of_a_sealed_connection_have_the_same_keys() -> None:
    client, server = sealed_pair()
    assert (client.accepted, server.lane) == (wire.Accepted(None, SEALED), "sealed")
    assert client.keys().sending == server.keys().receiving
    assert client.keys().receiving == server.keys().sending
    assert client.keys().sending != client.keys().receiving
    assert not client.keys().insecure_blocks
    assert {len(key) for key in client.keys()[:2]} == {32}


def test_each_handshake_has_other_keys() -> None:
    """Also with the same secret of the offer: the nonces of both sides, their names and the token are in the keys."""
    first, _ = sealed_pair()
    second, _ = sealed_pair()
    assert not set(first.keys()[:2]) & set(second.keys()[:2])
    insecure, _ = sealed_pair(insecure_blocks=True)
    assert insecure.keys().insecure_blocks


def test_the_keys_depend_on_the_secret_and_not_on_the_token_alone() -> None:
    """The secret is sent only on an encrypted connection, so the token does not open recorded messages."""
    nonce = bytes(32)
    keys = set()
    for secret in (bytes(32), bytes(range(32))):
        client = ClientHandshake("w", TOKEN, nonce=nonce)
        offer = wire.StreamOffer("10.0.0.1", 5000, bytes(32), secret)
        run(client, ServerHandshake("s", TOKEN, nonce=nonce, sealed=offer), "sealed")
        keys |= set(client.keys()[:2])
    assert len(keys) == 4


def test_a_sealed_lane_that_was_not_offered_is_refused() -> None:
    server = ServerHandshake("s", TOKEN)
    with pytest.raises(RefusedFrameError, match="not offered"):
        run(ClientHandshake("w", TOKEN), server, "sealed")
    assert server.peer is None


@pytest.mark.parametrize("broken", [{"nonce": bytes(8)}, {"secret": bytes(8)}])
def test_a_sealed_offer_with_an_incomplete_secret_is_refused(broken: dict[str, bytes]) -> None:
    client = ClientHandshake("w", TOKEN)
    parts = {"host": "10.0.0.1", "port": 5000, "nonce": bytes(32), "secret": bytes(32)} | broken
    server = ServerHandshake("s", TOKEN, sealed=wire.StreamOffer(**parts))  # type: ignore[arg-type]
    with pytest.raises(RefusedFrameError, match="nonce"):
        run(client, server)
    assert client.accepted is None


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True)])
def test_sides_that_do_not_agree_about_blocks_refuse_each_other(ours: bool, theirs: bool) -> None:
    client = ClientHandshake("w", TOKEN, insecure_blocks=ours)
    with pytest.raises(RefusedFrameError) as refused:
        run(client, ServerHandshake("s", TOKEN, insecure_blocks=theirs))
    assert refused.value.rule == "insecure-blocks"
    assert client.peer is None


@pytest.mark.parametrize("theirs", [True, False])
def test_a_client_may_leave_it_to_the_server_whether_blocks_are_sealed(theirs: bool) -> None:
    client = ClientHandshake("w", TOKEN, insecure_blocks=None)
    server = ServerHandshake("s", TOKEN, sealed=SEALED, insecure_blocks=theirs)
    run(client, server, "sealed")
    assert client.keys().insecure_blocks == server.keys().insecure_blocks == theirs


def test_nobody_on_the_way_can_switch_the_sealing_of_blocks_off() -> None:
    client, server = ClientHandshake("w", TOKEN, insecure_blocks=None), ServerHandshake("s", TOKEN)
    answer = decode_control(answer_of(server, client.hello()))
    assert isinstance(answer, Challenge)
    with pytest.raises(AuthenticationError):
        client.receive(encode_control(Challenge(answer.node, answer.nonce, answer.proof, insecure_blocks=True)))
