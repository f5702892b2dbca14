//! A portable attention call: its operands, and whether the kernels take it.

use super::mask::PortableMask;
use super::refusals;
use super::tiles::{THREADS, Tiles};
use crate::Element;
use crate::tensors::Heads;
use cubecl::ir::AddressType;
use cubecl::ir::features::TypeUsage;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::Sizes;
use flow_registry::Refusal;

/// Keys and values of one segment (or their gradients), each `[B, H_kv, S, D]`. `H` of queries is a multiple of `H_kv`.
#[derive(Clone, Debug)]
pub struct KeyValues {
    /// Keys.
    pub k: Heads,
    /// Values.
    pub v: Heads,
}

/// Numbers in f32, one for each query of each head: `[B, H, rows]`, of which the first `S_q` rows are used.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Where they are.
    pub handle: Handle,
    /// From one head to the next; at least `S_q`.
    pub rows: usize,
}

/// What forward and backward have in common. Tensors may have any strides.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// Queries `[B, H, S_q, D]`.
    pub q: &'a Heads,
    /// Keys and values in one or two segments; the second follows on the first.
    pub kv_segments: &'a [KeyValues],
    /// Scale of the scores, usually `1 / sqrt(D)`.
    pub scale: f32,
    /// Type of all elements.
    pub element: Element,
    /// What may attend to what.
    pub mask: &'a PortableMask,
}

/// Elements from the first to the last, with both.
pub(super) fn reach(heads: &Heads) -> usize {
    match heads.shape.contains(&0) {
        true => 0,
        false => {
            1 + heads
                .shape
                .iter()
                .zip(heads.strides)
                .map(|(n, s)| (n - 1) * s)
                .sum::<usize>()
        }
    }
}

impl Call<'_> {
    pub(super) fn tiles(&self) -> Tiles {
        Tiles::new(self.q.shape[3])
    }

    pub(super) fn kv_heads(&self) -> usize {
        self.kv_segments[0].k.shape[1]
    }

    /// Keys of segment `i`; none if it is missing.
    pub(super) fn keys(&self, i: usize) -> usize {
        self.kv_segments.get(i).map_or(0, |segment| segment.k.shape[2])
    }

    /// Keys and values of segment `i`; those of the first stand for a missing one, and are not read.
    pub(super) fn segment(&self, i: usize) -> &KeyValues {
        self.kv_segments.get(i).unwrap_or(&self.kv_segments[0])
    }

    /// Whether the kernels take the call, with these further operands of the shape of queries, and these of the shape
    /// of the segments. The answer follows from the device and the shapes alone.
    pub(super) fn check(
        &self,
        client: &Client,
        like_queries: &[(&'static str, &Heads)],
        like_segments: &[(&'static str, &KeyValues)],
        statistics: &[(&'static str, &Statistics)],
    ) -> Result<AddressType, Refusal> {
        let [batch, heads, queries, head_dim] = self.q.shape;
        if self.kv_segments.is_empty() || self.kv_segments.len() > 2 {
            return Err(refusals::segments(self.kv_segments.len()));
        }
        let kv_heads = self.kv_heads();
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
            return Err(refusals::group(heads, kv_heads));
        }
        let mut operands = vec![("q", self.q)];
        for &(name, found) in like_queries {
            same_shape(name, found, self.q.shape, ", as q")?;
            operands.push((name, found));
        }
        for (index, segment) in self.kv_segments.iter().enumerate() {
            let expected = [batch, kv_heads, segment.k.shape[2], head_dim];
            let (k, v) = [("k", "v"), ("k of segment 1", "v of segment 1")][index];
            same_shape(k, &segment.k, expected, ", to go with q and the other segment")?;
            same_shape(v, &segment.v, expected, ", as k")?;
            operands.extend([(k, &segment.k), (v, &segment.v)]);
        }
        for (index, &(name, found)) in like_segments.iter().enumerate() {
            let expected = self.segment(index).k.shape;
            same_shape(name, &found.k, expected, ", as k")?;
            same_shape(name, &found.v, expected, ", as v")?;
            operands.extend([(name, &found.k), (name, &found.v)]);
        }
        let mut widest = 0;
        for (name, operand) in operands {
            let holds = operand.handle.size_in_used() as usize / self.element.bytes();
            let reaches = reach(operand);
            if reaches > holds {
                return Err(refusals::beyond(name, reaches, holds));
            }
            widest = widest.max(holds);
        }
        for &(name, statistics) in statistics {
            let holds = statistics.handle.size_in_used() as usize / 4;
            let reaches = (batch * heads * statistics.rows)
                .saturating_sub(statistics.rows - queries.min(statistics.rows));
            if statistics.rows < queries || reaches > holds {
                let reaches = batch * heads * statistics.rows.max(queries);
                return Err(refusals::beyond(name, reaches, holds));
            }
        }
        self.mask.check(
            Sizes {
                batch,
                queries,
                kv_segments: [self.keys(0), self.keys(1)],
            },
            head_dim,
        )?;
        let address = AddressType::from_len(widest);
        self.check_device(client, address)?;
        Ok(address)
    }

    fn check_device(&self, client: &Client, address: AddressType) -> Result<(), Refusal> {
        let [batch, heads, _, head_dim] = self.q.shape;
        check_device(client, [batch, heads, head_dim], self.element)?;
        match client.properties().supports_address(address) {
            true => Ok(()),
            false => Err(refusals::device("bits in an address", 32, 64)),
        }
    }
}

/// Whether the kernels run on a device, for this many samples and heads of queries, heads of this width and elements of
/// this type.
///
/// # Errors
/// What it lacks.
pub fn check_device(
    client: &Client,
    [batch, heads, head_dim]: [usize; 3],
    element: Element,
) -> Result<(), Refusal> {
    if head_dim == 0 || head_dim > 256 {
        return Err(refusals::head_dim(head_dim));
    }
    let properties = client.properties();
    let hardware = &properties.hardware;
    let needs = [
        (
            "bytes of shared memory",
            hardware.max_shared_memory_size,
            Tiles::new(head_dim).shared_bytes(),
        ),
        (
            "threads in a block",
            hardware.max_units_per_cube as usize,
            THREADS,
        ),
        ("buffers in a kernel", hardware.max_bindings as usize, 12),
        ("blocks along y", hardware.max_cube_count.1 as usize, heads),
        ("blocks along z", hardware.max_cube_count.2 as usize, batch),
    ];
    for (what, found, needed) in needs {
        if found < needed {
            return Err(refusals::device(what, found, needed));
        }
    }
    let usage = properties.type_usage(element.native());
    match usage.contains(TypeUsage::Buffer) && usage.contains(TypeUsage::Conversion) {
        true => Ok(()),
        false => Err(refusals::element(element.name())),
    }
}

fn same_shape(
    name: &'static str,
    found: &Heads,
    expected: [usize; 4],
    why: &'static str,
) -> Result<(), Refusal> {
    match found.shape == expected {
        true => Ok(()),
        false => Err(refusals::shape(name, found.shape, expected, why)),
    }
}
