//! Which device computes, and in which precision values are stored.

pub mod capture;
pub mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
pub mod graph;
#[cfg(feature = "cuda")]
mod nvidia;
mod threads;

use crate::error::CoreError;
use crate::tensors::{RawTensor, cast};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use flow_registry::Refusal;
use threads::Crews;

/// An opened device.
#[derive(Clone, Debug)]
pub struct ComputeDevice {
    device: Device,
    name: String,
    crews: Crews,
    compute: Option<FloatDType>,
    #[cfg(feature = "cuda")]
    driver: Option<nvidia::DriverMemory>,
}

/// The kinds of device that this build can open.
pub fn available() -> &'static [&'static str] {
    match (cfg!(feature = "cuda"), cfg!(feature = "vulkan")) {
        (true, true) => &["cpu", "cuda", "vulkan"],
        (true, false) => &["cpu", "cuda"],
        (false, true) => &["cpu", "vulkan"],
        (false, false) => &["cpu"],
    }
}

/// Memory of the largest NVIDIA GPU here, whether a run may use it or not; none where there is none, or no library of the driver
/// to ask.
pub fn gpu_memory_bytes() -> Option<u64> {
    #[cfg(feature = "cuda")]
    return nvidia::DriverMemory::open()?.largest_device_bytes();
    #[cfg(not(feature = "cuda"))]
    None
}

/// Name and compute capability (major, minor) of NVIDIA GPU number `index`; none where there is none, or no library of the
/// driver to ask.
pub fn gpu_compute_capability(index: usize) -> Option<(String, (u32, u32))> {
    #[cfg(feature = "cuda")]
    return nvidia::DriverMemory::open()?.compute_capability(index);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = index;
        None
    }
}

/// NVIDIA GPUs that this process sees; 0 without a driver, or in a build that opens none.
pub fn visible_gpus() -> usize {
    // By the driver: the runtime's options may not be in force yet, and asking it would be too late for them.
    #[cfg(feature = "cuda")]
    return nvidia::visible();
    #[cfg(not(feature = "cuda"))]
    0
}

impl ComputeDevice {
    /// Opens device number `index` of those called `kind`.
    ///
    /// # Errors
    /// [`CoreError::NoDevice`] if this build or this machine lacks it.
    pub fn open(kind: &str, index: usize) -> Result<Self, CoreError> {
        match (kind, index) {
            ("cpu", 0) => Ok(Self::cpu()),
            #[cfg(feature = "cuda")]
            ("cuda", _) => Self::cuda(index),
            #[cfg(feature = "vulkan")]
            ("vulkan", 0) => Self::vulkan(),
            _ => Err(CoreError::NoDevice {
                asked: format!("{kind}:{index}"),
                refusal: Refusal::new(
                    match available().contains(&kind) {
                        true => format!("there is only `{kind}:0`"),
                        false => format!("it is not in this build, which has: {}", available().join(", ")),
                    },
                    match kind {
                        "cuda" => "Build with `--features cuda`, or set `device.kind = \"cpu\"`.",
                        _ => "Set `device.index = 0`, or `device.kind = \"cpu\"`.",
                    },
                ),
            }),
        }
    }

    /// The CPU, through Burn's `flex` backend.
    pub fn cpu() -> Self {
        Self {
            device: Device::flex(),
            name: cpu_name(),
            crews: Crews::default(),
            compute: None,
            #[cfg(feature = "cuda")]
            driver: None,
        }
    }

    /// The NVIDIA GPU number `index`, through Burn's `cuda` backend.
    ///
    /// # Errors
    /// [`CoreError::NoDevice`] if there is no driver, or no such GPU. (Burn's own constructor panics then.)
    #[cfg(feature = "cuda")]
    pub fn cuda(index: usize) -> Result<Self, CoreError> {
        let found = visible_gpus();
        if index >= found {
            return Err(CoreError::NoDevice {
                asked: format!("cuda:{index}"),
                refusal: Refusal::new(
                    match found {
                        0 => "it is in this build, but no NVIDIA driver answers".to_owned(),
                        1 => "the driver answers for one GPU, `cuda:0`".to_owned(),
                        n => format!("the driver answers for {n} GPUs, `cuda:0` to `cuda:{}`", n - 1),
                    },
                    match found {
                        0 => {
                            "See what `nvidia-smi` says and install NVIDIA's driver 580 or later (`flow-train doctor` \
                             looks for all that is needed), or set `device.kind = \"cpu\"`."
                        }
                        _ => {
                            "Set `device.index` to one of them. On several processes it is the GPU of a machine's first \
                             one, and each of the others has the next: start as many as there are GPUs."
                        }
                    },
                ),
            });
        }
        let device = Device::cuda(index);
        Ok(Self {
            name: format!("CUDA device {index}"),
            device,
            crews: Crews::default(),
            compute: None,
            driver: nvidia::DriverMemory::open(),
        })
    }

    /// The same device, on which models compute with copies of their weights in `dtype`. What is trained stays f32.
    pub fn computing_in(self, dtype: FloatDType) -> Self {
        let compute = (dtype != FloatDType::F32).then_some(dtype);
        Self { compute, ..self }
    }

    /// The type of the copies that models compute with, if they are not f32 like the weights.
    pub fn compute_dtype(&self) -> Option<FloatDType> {
        self.compute
    }

    /// The first device that a Vulkan driver answers for, through Burn's `wgpu` backend; Mesa's driver for the processor
    /// (lavapipe) is one. Kernels reach it as WGSL, which has f32 and no bf16.
    ///
    /// # Errors
    /// [`CoreError::NoDevice`] if no driver answers.
    #[cfg(feature = "vulkan")]
    pub fn vulkan() -> Result<Self, CoreError> {
        let found = Device::enumerate(burn::tensor::DeviceType::Wgpu)
            .into_iter()
            .next();
        let device = found.ok_or_else(|| CoreError::NoDevice {
            asked: "vulkan".into(),
            refusal: Refusal::new(
                "it is in this build, but no Vulkan driver answers",
                "Install one (Debian, for the processor: `apt-get install mesa-vulkan-drivers libvulkan1`, 24 or newer), \
                 or set `device.kind = \"cpu\"`.",
            ),
        })?;
        Ok(Self {
            device,
            name: "Vulkan device".into(),
            crews: Crews::default(),
            compute: None,
            #[cfg(feature = "cuda")]
            driver: None,
        })
    }

    /// Whether it is the CPU.
    pub fn is_processor(&self) -> bool {
        self.device == Device::flex()
    }

    /// Burn's handle.
    pub fn burn(&self) -> &Device {
        &self.device
    }

    /// The device in words.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that the runtime has taken of the device's memory, everything asked of it being done; on a processor there is
    /// no such runtime. Pools keep what they once took, so this is the most that was ever needed at once and what lies unused
    /// between tensors; the device's own tools show it, and what the context and the programs take (about 1.4 GiB on CUDA).
    pub fn taken_bytes(&self) -> Option<u64> {
        #[cfg(feature = "cube")]
        if !self.is_processor() {
            return Some(cube::memory::usage(&self.device).bytes_reserved);
        }
        None
    }

    /// Bytes of NVIDIA's memory that the driver counts for this process: pools, context, programs, and what other libraries took.
    /// None elsewhere, and where the driver does not tell processes apart.
    pub fn driver_bytes(&self) -> Option<u64> {
        #[cfg(feature = "cuda")]
        if let Some(driver) = &self.driver {
            return driver.bytes();
        }
        None
    }

    /// Makes tensors that last as long as a run: weights, what the optimizer remembers, averages. On a GPU they get memory of
    /// their own, in their own size, apart from the pools that every step takes from and gives back to. (A pool looks at all
    /// that stands in it whenever it serves an allocation, and one that was outgrown stays as long as anything stands in it.)
    /// What is made in passing gets such memory too, which goes back with [`release_unused`](Self::release_unused).
    pub fn with_persistent_allocation<T: Send>(&self, make: impl FnOnce() -> T + Send) -> T {
        self.device.memory_persistent_allocations(make, |make| make())
    }

    /// Gives the memory back that the runtime has taken and no tensor uses, everything asked of it being done: after loading,
    /// and for a program that shares the device with others. The next operations take it again, which costs time.
    pub fn release_unused(&self) {
        #[cfg(feature = "cube")]
        if !self.is_processor() {
            cube::memory::release_unused(&self.device);
        }
    }

    /// Bytes that tensors have in use on a device of CubeCL's runtimes, everything asked of it being done and emptied pages
    /// given back.
    #[cfg(feature = "cube")]
    pub fn bytes_in_use(&self) -> u64 {
        cube::memory::usage(&self.device).bytes_in_use
    }

    /// Bytes in use by what the calling thread made to last ([`with_persistent_allocation`](Self::with_persistent_allocation)) on a device of CubeCL's runtimes,
    /// everything asked of it being done.
    #[cfg(feature = "cube")]
    pub fn bytes_persistent(&self) -> u64 {
        cube::memory::bytes_persistent(&self.device)
    }

    /// Pieces of work that [`concurrently`](Self::concurrently) has under way at a time: as many as the calling pool has threads
    /// on the processor, one elsewhere, whose memory several pieces would need at once.
    pub fn concurrency(&self) -> usize {
        if self.is_processor() {
            rayon::current_num_threads()
        } else {
            1
        }
    }

    /// Independent pieces of work beside one another: `task(0)`, `task(1)`, … up to `count`, in order. No bit depends on how
    /// many there are at a time.
    ///
    /// # Panics
    /// If a task does, or if no thread can be started.
    pub fn concurrently<T: Send>(&self, count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
        self.crews.run(self.concurrency(), count, task)
    }

    /// A tensor of `shape` from host values.
    pub fn tensor<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// An integer tensor of `shape` from host values.
    pub fn int_tensor<const D: usize>(&self, values: Vec<i64>, shape: [usize; D]) -> Tensor<D, Int> {
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// A tensor of 32-bit words whose rank is erased, from host values.
    pub fn words(&self, values: Vec<i32>) -> RawTensor {
        let count = values.len();
        let data = TensorData::new(values, [count]);
        Tensor::<1, Int>::from_data(data, (&self.device, burn::tensor::DType::I32)).into_dispatch()
    }

    /// Words of zero, made where they lie.
    pub fn zero_words(&self, count: usize) -> RawTensor {
        Tensor::<1, Int>::zeros([count], (&self.device, burn::tensor::DType::I32)).into_dispatch()
    }

    /// Zeros in f32, made where they lie.
    pub fn zeros(&self, shape: &[usize]) -> RawTensor {
        let count = shape.iter().product();
        #[cfg(feature = "cube")]
        if !self.is_processor() {
            use burn::backend::{Dispatch, ops::FloatTensorOps};
            let flat = Tensor::<1>::zeros([count], (&self.device, burn::tensor::DType::F32));
            return Dispatch::float_reshape(flat.into_dispatch(), shape.into());
        }
        cpu::from_vec(vec![0.0; count], shape)
    }

    /// Zeros in a type of fewer bits, made where they lie.
    pub fn zeros_in(&self, shape: &[usize], dtype: FloatDType) -> RawTensor {
        #[cfg(feature = "cube")]
        if !self.is_processor() {
            use burn::backend::{Dispatch, ops::FloatTensorOps};
            let dtype: burn::tensor::DType = dtype.into();
            let flat = Tensor::<1>::zeros([shape.iter().product::<usize>()], (&self.device, dtype));
            return Dispatch::float_reshape(flat.into_dispatch(), shape.into());
        }
        cast(&self.zeros(shape), dtype)
    }

    /// A tensor in f32, its values unspecified; zeros on the processor.
    pub fn empty(&self, shape: &[usize]) -> RawTensor {
        self.empty_in(shape, FloatDType::F32)
    }

    /// A tensor in any float type, its values unspecified; zeros on the processor.
    pub fn empty_in(&self, shape: &[usize], dtype: FloatDType) -> RawTensor {
        #[cfg(feature = "cube")]
        if !self.is_processor() {
            use burn::backend::{Dispatch, ops::FloatTensorOps};
            let (count, dtype): (usize, burn::tensor::DType) = (shape.iter().product(), dtype.into());
            let flat = Tensor::<1>::empty([count], (&self.device, dtype));
            return Dispatch::float_reshape(flat.into_dispatch(), shape.into());
        }
        cast(&self.zeros(shape), dtype)
    }

    /// A tensor whose rank is erased, from host values.
    pub fn plain(&self, values: Vec<f32>, shape: &[usize]) -> RawTensor {
        #[cfg(feature = "cube")]
        if !self.is_processor() {
            use burn::backend::{Dispatch, ops::FloatTensorOps};
            let flat = [values.len()];
            return Dispatch::float_reshape(self.tensor(values, flat).into_dispatch(), shape.into());
        }
        cpu::from_vec(values, shape)
    }

    /// A tensor in bf16 whose rank is erased, from its values as files have them, row-major and little-endian: they go to the device
    /// as they are, which holds on to `bytes` until it has them, a mapped file without a copy on the host. Nothing on the processor,
    /// which has no such tensors.
    pub fn plain_bf16(&self, bytes: bytes::Bytes, shape: &[usize]) -> Option<RawTensor> {
        #[cfg(feature = "cube")]
        if !self.is_processor() {
            use burn::backend::{Dispatch, ops::FloatTensorOps};
            use burn::tensor::{AllocationProperty, Bytes, DType};
            let count = bytes.len() / 2;
            // CubeCL copies what is called otherwise into pinned memory first, a tensor after the other by one thread: measured at 1 GB/s.
            // The driver takes any memory, and has read it when its call returns if it is not pinned.
            let bytes = Bytes::from_shared(bytes, AllocationProperty::Pinned);
            let flat = TensorData::from_bytes(bytes, [count], DType::BF16);
            let flat = Tensor::<1>::from_data(flat, (&self.device, DType::BF16));
            return Some(Dispatch::float_reshape(flat.into_dispatch(), shape.into()));
        }
        let _ = (bytes, shape);
        None
    }

    /// A tensor in bf16 whose rank is erased, of host values that are rounded to nearest, ties to even, before they go to the device,
    /// which never holds them in f32. Nothing on the processor, which has no such tensors.
    pub fn plain_rounded_bf16(&self, values: &[f32], shape: &[usize]) -> Option<RawTensor> {
        #[cfg(feature = "cube")]
        if !self.is_processor() {
            use burn::backend::{Dispatch, ops::FloatTensorOps};
            use burn::tensor::DType;
            use rayon::prelude::*;
            let rounded: Vec<half::bf16> = values
                .par_iter()
                .map(|value| half::bf16::from_f32(*value))
                .collect();
            let flat = TensorData::new(rounded, [values.len()]);
            let flat = Tensor::<1>::from_data(flat, (&self.device, DType::BF16));
            return Some(Dispatch::float_reshape(flat.into_dispatch(), shape.into()));
        }
        let _ = (values, shape);
        None
    }
}

/// The processor's name as the system gives it, else its architecture.
fn cpu_name() -> String {
    let described = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{} ({threads} threads)",
        described.unwrap_or_else(|| std::env::consts::ARCH.into())
    )
}
