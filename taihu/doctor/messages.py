"""Facts as messages, and back."""

from __future__ import annotations

from taihu.doctor.facts import Interface, LinkFacts, MachineFacts
from taihu.protos import doctor_pb2 as pb


def facts_to_message(facts: MachineFacts) -> pb.MachineFacts:
    """The message of a machine's facts."""
    names = [pb.Addresses(name=name, addresses=addresses) for name, addresses in facts.names.items()]
    return pb.MachineFacts(
        host=facts.host,
        versions=facts.versions,
        features=sorted(facts.features),
        addresses=facts.addresses,
        names=names,
        open_files=facts.open_files,
        locked_bytes=facts.locked_bytes,
        address_space_bytes=facts.address_space_bytes,
        free_memory_bytes=facts.free_memory_bytes,
        free_shared_bytes=facts.free_shared_bytes,
    )


def facts_from_message(message: pb.MachineFacts) -> MachineFacts:
    """The facts in a message."""
    return MachineFacts(
        message.host,
        dict(message.versions),
        frozenset(message.features),
        tuple(message.addresses),
        {each.name: tuple(each.addresses) for each in message.names},
        message.open_files,
        message.locked_bytes,
        message.address_space_bytes,
        message.free_memory_bytes,
        message.free_shared_bytes,
    )


def interface_to_message(interface: Interface) -> pb.Interface:
    """The message of an interface."""
    return pb.Interface(
        name=interface.name,
        address=interface.address,
        mtu=interface.mtu,
        claimed_bits_per_second=interface.claimed_bits_per_second,
    )


def interface_from_message(message: pb.Interface) -> Interface:
    """The interface in a message."""
    return Interface(message.name, message.address, message.mtu, message.claimed_bits_per_second)


def link_to_message(link: LinkFacts) -> pb.LinkFacts:
    """The message of a link, without the names of its ends."""
    return pb.LinkFacts(
        alpha_seconds=link.alpha_s,
        bytes_per_second_up=link.up,
        bytes_per_second_down=link.down,
        bytes_per_second_direct=link.direct,
        failure=link.failure,
        small_passed=link.small_passed,
        near=interface_to_message(link.near_interface),
        far=interface_to_message(link.far_interface),
    )


def link_from_message(message: pb.LinkFacts, near: str, far: str) -> LinkFacts:
    """The link in a message, between ends that the caller names."""
    return LinkFacts(
        near,
        far,
        message.alpha_seconds,
        message.bytes_per_second_up,
        message.bytes_per_second_down,
        message.bytes_per_second_direct,
        message.failure,
        message.small_passed,
        interface_from_message(message.near),
        interface_from_message(message.far),
    )
