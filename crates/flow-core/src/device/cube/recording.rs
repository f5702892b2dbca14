//! Recordings on CubeCL's runtimes: CUDA graphs on NVIDIA's GPUs, lists of dispatches on `wgpu`.

use super::memory;
use crate::device::capture::{self, CaptureDevice};
use crate::device::graph::{Recorded, Recorder};
use crate::tensors::{RawTensor, buffer, is_float, shape};
use burn::backend::{
    Dispatch, TensorMetadata,
    ops::{FloatTensorOps, IntTensorOps},
};
use burn::tensor::Slice;
use burn_cubecl::CubeDevice;
use cubecl::client::Graph;
use cubecl::prelude::Client;
use cubecl::server::{Handle, ServerError};
use cubecl::{MemoryPoolKind, MemoryPoolReport, MemoryScope};
use flow_registry::Refusal;
use std::fmt;
use std::thread::ThreadId;

/// Records computations on the device of their inputs.
#[derive(Clone, Copy, Debug)]
pub struct CubeRecorder;

/// Pieces of memory put aside for a recording, at least.
const FEWEST_ROOMS: u64 = 12;

/// Memory that keeps its address, and the shape of what is written to it.
#[derive(Clone, Debug)]
struct Place {
    flat: Option<RawTensor>,
    shape: Vec<usize>,
}

impl Place {
    /// Room for a tensor like `tensor`. Without gaps: rows of more axes would be padded on a GPU.
    fn like(tensor: &RawTensor) -> Self {
        let length = [tensor.shape().num_elements()];
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let flat = if is_float(tensor) {
            Dispatch::float_empty(length.into(), &device, dtype.into())
        } else {
            Dispatch::int_empty(length.into(), &device, dtype.into())
        };
        Self {
            flat: Some(flat),
            shape: shape(tensor),
        }
    }

    /// What it holds.
    fn view(&self) -> RawTensor {
        let flat = self
            .flat
            .clone()
            .expect("only `write` takes it out, and puts it back");
        let shape = self.shape.clone().into();
        if is_float(&flat) {
            Dispatch::float_reshape(flat, shape)
        } else {
            Dispatch::int_reshape(flat, shape)
        }
    }

    /// Writes `tensor`'s values.
    fn write(&mut self, tensor: &RawTensor) -> Result<(), Refusal> {
        if shape(tensor) != self.shape {
            return Err(Refusal::because(format!(
                "it was recorded for a tensor {:?} and got {:?}",
                self.shape,
                shape(tensor)
            )));
        }
        let flat = self.flat.take().expect("nothing else takes it out");
        let length = flat.shape().num_elements();
        let (before, all) = (buffer(&flat), [Slice::from(0..length)]);
        let written = if is_float(tensor) {
            let values = Dispatch::float_reshape(tensor.clone(), [length].into());
            Dispatch::float_slice_assign(flat, &all, values)
        } else {
            let values = Dispatch::int_reshape(tensor.clone(), [length].into());
            Dispatch::int_slice_assign(flat, &all, values)
        };
        let moved = buffer(&written) != before;
        self.flat = Some(written);
        if moved {
            return Err(Refusal::because(
                "something holds an input of the recording, so it cannot be written to in place",
            ));
        }
        Ok(())
    }
}

fn refused(what: &str, error: impl fmt::Display) -> Refusal {
    // CubeCL writes headings for backtraces that nobody asked for.
    let error = error.to_string();
    let lines: Vec<&str> = error
        .lines()
        .filter(|line| !line.to_lowercase().contains("backtrace"))
        .collect();
    Refusal::because(format!("the device refused to {what}: {}", lines.join("\n")))
}

/// Waits until all that was asked of the device is done, and asks whether the memory of `handles` holds what was computed: a
/// launch that failed shows in what it was to write, and nowhere else.
fn written<'a>(client: &Client, handles: impl Iterator<Item = &'a Handle>) -> Result<(), ServerError> {
    cubecl::future::block_on(client.sync_buffers(handles))
}

/// The memory of those of `tensors` that are the device's.
fn handles(tensors: &[RawTensor]) -> impl Iterator<Item = &Handle> {
    let floats = tensors
        .iter()
        .filter_map(super::read)
        .map(|tensor| &tensor.handle);
    let ints = tensors
        .iter()
        .filter_map(super::read_ints)
        .map(|tensor| &tensor.handle);
    floats.chain(ints)
}

/// Memory that is set aside before the last run that is not recorded: a quarter more than the pool has for tensors of the
/// stream, in pieces as large as the largest of them, each of which fills a page.
struct Rooms {
    count: u64,
    bytes_each: u64,
    page_bytes: u64,
}

impl Rooms {
    fn of(client: &Client) -> Self {
        let report = client.memory_report(MemoryScope::CurrentStream);
        let mut pools = report.streams.iter().flat_map(|stream| &stream.pools.dynamic);
        let grows = |pool: &&MemoryPoolReport| matches!(pool.kind, MemoryPoolKind::Adaptive { .. });
        let Some(pool) = pools.find(grows).filter(|pool| pool.largest_alloc > 0) else {
            return Self {
                count: 0,
                bytes_each: 0,
                page_bytes: 0,
            };
        };
        let page = pool.usage.bytes_reserved / pool.pages.max(1);
        Self {
            count: FEWEST_ROOMS + pool.pages / 4,
            bytes_each: pool.largest_alloc,
            page_bytes: page.max(pool.largest_alloc),
        }
    }
}

/// What CubeCL makes a page larger by than the allocation that it is for, and the unit that it rounds its size up to (CubeCL 0.11.3).
const PAGE_SLACK: u64 = 1 << 20;
/// What allocations begin at multiples of, at most.
const ALIGNMENT: u64 = 512;
/// A page is left as it is if tensors fill all of it but one part of so many, and made larger by such a part at most.
const PARTS_OF_A_PAGE: u64 = 16;

/// The size of pages that tensors of so many `bytes` fill, if that is little more than the `page` that they do not fill.
fn fitted_page(page: u64, bytes: u64) -> Option<u64> {
    let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
    let count = page / bytes;
    let spare = page - count * bytes;
    let larger = ((count + 1) * bytes).next_multiple_of(PAGE_SLACK);
    let part = page / PARTS_OF_A_PAGE;
    (count > 0 && spare > part && larger - page <= part).then_some(larger)
}

/// The stream of a client, and the device that it is on.
struct Stream {
    client: Client,
    device: CubeDevice,
}

impl Stream {
    fn of(tensor: &RawTensor) -> Result<Self, Refusal> {
        let found = super::read(tensor).or_else(|| super::read_ints(tensor));
        let found =
            found.ok_or_else(|| Refusal::because("its first input is on no device that has graphs"))?;
        Ok(Self {
            client: found.client.clone(),
            device: found.device.clone(),
        })
    }
}

impl CaptureDevice for Stream {
    type Graph = Graph;
    type SetAside = Vec<Handle>;

    fn bytes_reserved(&self) -> u64 {
        memory::taken(&self.client).bytes_reserved
    }

    fn bytes_free(&self) -> Option<u64> {
        memory::free(&self.device)
    }

    fn bytes_to_set_aside(&self) -> u64 {
        let rooms = Rooms::of(&self.client);
        rooms.count * rooms.page_bytes
    }

    fn set_aside(&self) -> Result<Vec<Handle>, Refusal> {
        let rooms = Rooms::of(&self.client);
        let taken: Vec<Handle> = (0..rooms.count)
            .map(|_| self.client.empty(rooms.bytes_each as usize))
            .collect();
        // A device that does not say what is free is not asked whether it has this: nobody writes it.
        if self.bytes_free().is_some() {
            written(&self.client, taken.iter()).map_err(|error| refused("set memory aside", error))?;
        }
        Ok(taken)
    }

    fn prepare(&self) -> Result<(), Refusal> {
        let prepared = self.client.graph_prepare();
        prepared.map_err(|error| refused("prepare a recording", error))
    }

    fn finish(&self, outputs: &[RawTensor]) -> Result<(), Refusal> {
        written(&self.client, handles(outputs)).map_err(|error| refused("warm up", error))
    }

    fn start(&self) -> Result<(), Refusal> {
        let begun = self.client.start_capture();
        begun.map_err(|error| refused("begin a recording", error))
    }

    fn stop(&self) -> Result<Graph, Refusal> {
        let ended = self.client.stop_capture();
        ended.map_err(|error| refused("end a recording", error))
    }
}

impl Recorder for CubeRecorder {
    fn record(
        &self,
        inputs: &[RawTensor],
        warm_up: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
        compute: &mut dyn FnMut(&[RawTensor]) -> Vec<RawTensor>,
    ) -> Result<Box<dyn Recorded>, Refusal> {
        let first = inputs.first();
        let stream = Stream::of(first.ok_or_else(|| Refusal::because("it has no input"))?)?;
        let mut places: Vec<Place> = inputs.iter().map(Place::like).collect();
        for (place, input) in places.iter_mut().zip(inputs) {
            place.write(input)?;
        }
        let views = || places.iter().map(Place::view).collect::<Vec<_>>();
        // What is free already would hide what the warm-up needs. Memory that is not given back now is given back later.
        let _ = stream.client.memory_cleanup();
        let (graph, outputs) =
            capture::record(&stream, &mut || warm_up(&views()), &mut || compute(&views()))?;
        Ok(Box::new(CubeRecording {
            graph,
            thread: std::thread::current().id(),
            inputs: places,
            outputs,
        }))
    }

    fn copied(&self, tensor: &RawTensor) -> RawTensor {
        let mut place = Place::like(tensor);
        place
            .write(tensor)
            .expect("a new place of the tensor's shape takes it");
        place.view()
    }

    fn is_held(&self, tensor: &RawTensor) -> bool {
        super::read(tensor).is_none_or(|tensor| !tensor.can_mut())
    }

    fn is_readable(&self, tensors: &[RawTensor]) -> bool {
        let Some(stream) = tensors.first().and_then(|first| Stream::of(first).ok()) else {
            return true;
        };
        written(&stream.client, handles(tensors)).is_ok()
    }

    fn release(&self, like: &RawTensor) {
        // Memory that is not given back now is given back later.
        let _ = Stream::of(like).map(|stream| stream.client.memory_cleanup());
    }

    fn has_pages(&self) -> bool {
        true
    }

    fn fit_pages(&self, like: &RawTensor, bytes: u64) {
        let Ok(Stream { client, .. }) = Stream::of(like) else {
            return;
        };
        let report = client.memory_report(MemoryScope::CurrentStream);
        let mut pools = report.streams.iter().flat_map(|stream| &stream.pools.dynamic);
        let page = pools.find_map(|pool| match pool.kind {
            MemoryPoolKind::Adaptive { page_size, .. } => Some(page_size),
            _ => None,
        });
        let Some(larger) = page.and_then(|page| fitted_page(page, bytes)) else {
            return;
        };
        // New pages are as large as the largest allocation asks for. Memory that is not there leaves the pages as they are.
        let room = client.empty((larger - PAGE_SLACK) as usize);
        let _ = written(&client, std::iter::once(&room));
        drop(room);
        let _ = client.memory_cleanup();
    }
}

/// A recording, and the memory of its inputs and outputs.
struct CubeRecording {
    graph: Graph,
    thread: ThreadId,
    inputs: Vec<Place>,
    outputs: Vec<RawTensor>,
}

impl fmt::Debug for CubeRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CubeRecording")
            .field("inputs", &self.inputs.len())
            .field("outputs", &self.outputs.len())
            .finish_non_exhaustive()
    }
}

impl Recorded for CubeRecording {
    fn replay(&mut self, inputs: &[RawTensor]) -> Result<&[RawTensor], Refusal> {
        if std::thread::current().id() != self.thread {
            return Err(Refusal::because(
                "it belongs to the thread that recorded it, and another one asked",
            ));
        }
        if inputs.len() != self.inputs.len() {
            return Err(Refusal::because(format!(
                "it was recorded with {} inputs and got {}",
                self.inputs.len(),
                inputs.len()
            )));
        }
        for (place, input) in self.inputs.iter_mut().zip(inputs) {
            place.write(input)?;
        }
        // SAFETY: the recording keeps the memory of its inputs and outputs; CubeCL keeps every page that the kernels between
        // touched. Weights are the caller's, who compares their addresses. This thread's stream orders writes and reads.
        unsafe { self.graph.replay() }.map_err(|error| refused("replay", error))?;
        Ok(&self.outputs)
    }

    fn outputs(&self) -> &[RawTensor] {
        &self.outputs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pages_grow_a_little_where_that_fills_them() {
        // Wan 2.1 1.3B, 4 videos of 3,510 tokens in bf16: the inner width of 8,960 takes 240 MiB and has a page of 241; five and
        // six streams of 1,536 channels take 205.7 and 246.8 MiB.
        let stream = 4 * 3510 * 1536 * 2;
        assert_eq!(fitted_page(241 * MIB, stream), Some(247 * MIB));
        assert_eq!(fitted_page(247 * MIB, stream), None, "they fill it");
        // An inner width of four times the stream's.
        assert_eq!(fitted_page(145 * MIB, 36 * MIB), None);
        assert_eq!(fitted_page(19 * MIB, 6 * MIB), None, "little is spare");
        assert_eq!(fitted_page(20 * MIB, 6 * MIB), None, "that would be a fifth more");
        assert_eq!(fitted_page(23 * MIB, 6 * MIB), Some(24 * MIB));
        assert_eq!(fitted_page(2 * MIB, 3 * MIB), None, "a page has room for none");
        assert_eq!(fitted_page(2 * MIB, 0), None);
    }
}
