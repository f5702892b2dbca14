//! CubeCL's stream of a thread, seen from outside: where its buffers are, and calls of the driver in the order of its launches.
//!
//! None of this is a documented interface of CubeCL, whose version is pinned. What is used: a server's streams are public
//! (`WriteScoped::write_streams`), and so is the field `sys` of a stream, the driver's handle.

use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl_core::device::Device as _;
use cubecl_core::device_handle::DeviceHandle;
use cubecl_core::environment::stream::StreamId;
use cubecl_server::runtime::Runtime;
use cubecl_server::stream::WriteScoped;
use cudarc::driver::CudaContext;
use cudarc::driver::result::stream::{StreamKind, create as create_stream, wait_event};
use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream};
use flow_core::RawTensor;
use flow_core::cube;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

/// CubeCL's server of an NVIDIA GPU, which lives on a thread of its own.
type Server = <CudaRuntime as Runtime>::Server;

/// Sums that may be on the device at a time: while one is exchanged the next one is packed, and the device never waits for the host. More
/// would fill the queue of launches, in which the host then waits without a deadline.
pub(crate) const IN_FLIGHT: usize = 2;

/// Places that [`Gpu::mark`] notes: as many in CubeCL's stream as may be in flight, then as many in the stream beside it.
pub(crate) const MARKS: usize = 2 * IN_FLIGHT;

/// A GPU: CubeCL's thread that launches on it, and the driver's context, which is the one that CubeCL has.
pub(crate) struct Gpu {
    /// Opened when it is needed first: options of the runtime may not be in force before.
    server: OnceLock<DeviceHandle<Server>>,
    context: Arc<CudaContext>,
    /// Recorded behind what is waited for, by mark.
    events: Vec<Event>,
    /// Recorded in CubeCL's stream where the stream beside it goes on from.
    fork: Event,
    /// A stream of our own, for what is on its way while CubeCL's computes. It lives as long as the process.
    beside: Stream,
}

/// An event of the driver. It is made once and lives as long as the process.
#[derive(Clone, Copy)]
struct Event(CUevent);

// SAFETY: an event is a handle that the driver lets any thread use.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// The stream on which CubeCL launches what the calling thread asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(CUstream);

// SAFETY: a stream is a handle that the driver lets any thread use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// As NCCL wants it.
    pub(crate) fn raw(self) -> *mut c_void {
        self.0.cast()
    }
}

/// In words, that CubeCL's thread did not do what was asked of it.
fn ended(message: Option<&str>) -> String {
    format!("CubeCL's thread ended: {}", message.unwrap_or("it says no more"))
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({})", self.context.ordinal())
    }
}

impl Gpu {
    /// GPU number `index` of those that this process sees, its context current on the calling thread.
    pub(crate) fn open(index: usize) -> Result<Self, String> {
        let context = CudaContext::new(index).map_err(|error| error.to_string())?;
        context.bind_to_thread().map_err(|error| error.to_string())?;
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = || {
            let created = cudarc::driver::result::event::create(flags).map(Event);
            created.map_err(|error| error.to_string())
        };
        let events = (0..MARKS)
            .map(|_| event())
            .collect::<Result<Vec<Event>, String>>()?;
        let fork = event()?;
        let beside = create_stream(StreamKind::NonBlocking).map_err(|error| error.to_string())?;
        Ok(Self {
            server: OnceLock::new(),
            context,
            events,
            fork,
            beside: Stream(beside),
        })
    }

    fn server(&self) -> &DeviceHandle<Server> {
        let index = self.context.ordinal();
        self.server
            .get_or_init(|| DeviceHandle::new(CudaDevice { index }.to_id()))
    }

    /// Makes the context current on the calling thread.
    pub(crate) fn bind(&self) -> Result<(), String> {
        self.context.bind_to_thread().map_err(|error| error.to_string())
    }

    /// The stream of the calling thread. It is there once the thread has asked anything of the device.
    pub(crate) fn stream(&self) -> Result<Stream, String> {
        let id = StreamId::current();
        let found = self.server().submit_blocking(move |server: &mut Server| {
            let stream = server.write_streams().try_stream_mut(&id);
            stream.map(|stream| Stream(stream.sys))
        });
        let found = found.map_err(|error| ended(error.message()))?;
        found.ok_or_else(|| "CubeCL has no stream for this thread".into())
    }

    /// Runs `call` on the thread that launches CubeCL's kernels, after all that was launched before, the context current.
    pub(crate) fn on_launching_thread<R: Send>(&self, call: impl FnOnce() -> R + Send) -> Result<R, String> {
        let done = self.server().submit_blocking(move |_: &mut Server| call());
        done.map_err(|error| ended(error.message()))
    }

    /// Where the values of a tensor without gaps begin. The calling thread's stream comes behind whatever wrote them. The tensor must
    /// be kept until the device is done with them.
    pub(crate) fn address(&self, tensor: &RawTensor) -> Result<u64, String> {
        let tensor = cube::read(tensor).ok_or("a tensor is not on the GPU")?;
        let resource = tensor.client.get_resource::<Server>(tensor.handle.clone());
        let resource = resource.map_err(|error| format!("{error}"))?;
        Ok(resource.resource().ptr)
    }

    /// The stream beside CubeCL's, for what comes behind all that was launched in `stream` so far. What is launched in `stream` later does
    /// not wait for it, unless [`join`](Self::join) says so.
    pub(crate) fn fork(&self, stream: Stream) -> Result<Stream, String> {
        let (fork, beside) = (self.fork, self.beside);
        let forked = self.on_launching_thread(move || {
            // Taken whole into the closure: their fields alone are not `Send`.
            let (fork, stream, beside) = (fork, stream, beside);
            // SAFETY: the handles are alive: event and stream of our own for ever, the other stream as long as CubeCL's server, on whose
            // thread this is.
            unsafe {
                cudarc::driver::result::event::record(fork.0, stream.0)?;
                wait_event(beside.0, fork.0, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
            }
        })?;
        forked.map_err(|error| error.to_string())?;
        Ok(beside)
    }

    /// What is launched in `stream` from now on comes behind a mark of any stream.
    pub(crate) fn join(&self, stream: Stream, mark: usize) -> Result<(), String> {
        let event = self.events[mark];
        let joined = self.on_launching_thread(move || {
            // As in `fork`.
            let (event, stream) = (event, stream);
            // SAFETY: as in `mark`.
            unsafe { wait_event(stream.0, event.0, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
        })?;
        joined.map_err(|error| error.to_string())
    }

    /// Notes how far `stream` has been filled, as mark number `mark`, which may be below [`MARKS`].
    pub(crate) fn mark(&self, stream: Stream, mark: usize) -> Result<(), String> {
        let event = self.events[mark];
        let recorded = self.on_launching_thread(move || {
            // Taken whole into the closure: its fields alone are not `Send`.
            let (event, stream) = (event, stream);
            // SAFETY: both handles are alive: the event for ever, the stream as long as CubeCL's server, on whose thread this is.
            unsafe { cudarc::driver::result::event::record(event.0, stream.0) }
        })?;
        recorded.map_err(|error| error.to_string())
    }

    /// Whether the device has come to where [`mark`](Self::mark) was last set, or it never was. Asks the driver, not CubeCL, whose thread
    /// may wait for the device.
    pub(crate) fn is_past(&self, mark: usize) -> Result<bool, String> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.events[mark].0) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => Err(format!("the driver says {other:?}")),
        }
    }
}
