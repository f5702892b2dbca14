//! Multi-tensor launches: groups tensors that one launch can process.
//!
//! A step of an optimizer is little work on each of many tensors. With a launch for each, the host is busier than the device.

use crate::Buffer;
use crate::buffer::address_type;
use cubecl::ir::AddressType;
use cubecl::prelude::*;

/// Tensors of one launch, at most: the kernel's code grows with them.
pub(crate) const MOST: usize = 16;

/// `all` in groups of those that are alike, in their order, with at most as many as a launch takes that binds
/// `buffers_of_one` buffers for each. Those of no `length` are left out.
pub(crate) fn groups<T: Copy, K: PartialEq>(
    client: &Client,
    all: &[T],
    buffers_of_one: usize,
    alike: impl Fn(&T) -> K,
    length: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    let bindings = client.properties().hardware.max_bindings as usize;
    // One is for what all have in common.
    let most = (bindings.saturating_sub(1) / buffers_of_one).clamp(1, MOST);
    let mut found: Vec<Vec<T>> = Vec::new();
    for one in all.iter().filter(|one| length(one) > 0) {
        // The last of its kind, so that each keeps its order; not too long for 32-bit indices, which most have.
        let fits = |group: &&mut Vec<T>| {
            let values: usize = group.iter().map(&length).sum();
            alike(&group[0]) == alike(one) && group.len() < most && values + length(one) < 1 << 31
        };
        match found.iter_mut().rev().find(fits) {
            Some(group) => group.push(*one),
            None => found.push(vec![*one]),
        }
    }
    found
}

/// Bits of an index into all of `buffers` one after another, or into `other`.
pub(crate) fn address_of(buffers: &[&Buffer], other: &Buffer) -> AddressType {
    let together = buffers.iter().map(|buffer| buffer.length).sum();
    AddressType::from_len(together).max(address_type(&[other]))
}
