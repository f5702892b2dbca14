//! Pictures within a border of one pixel: where they lie, and how others come to lie so.

use burn::tensor::DType;
use cubecl_runtime::server::Handle;
use flow_core::cube::{self, CubeTensor};
use flow_core::tensors::RawTensor;
use flow_kernels_cube::pictures::Pictures;
use flow_kernels_cube::pictures::border::{Bordered, border};
use flow_kernels_cube::{Buffer, Element};
use flow_matmul_cube::problem::Refusal;
use flow_matmul_cube::tensors::Matrix;

/// Pictures `[B, 1, H, W, C]` within their borders of one pixel.
pub(super) struct Within {
    pub(super) batch: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Within {
    /// Pixels from a row to the next.
    pub(super) fn pitch(&self) -> usize {
        self.width + 2
    }

    /// Pixels from the first that counts to the last, with those of the border between.
    pub(super) fn pixels(&self) -> usize {
        self.batch * (self.height + 2) * self.pitch() - 2 * self.pitch() - 2
    }

    /// Strides of the axes of tensors of `channels` channels.
    pub(super) fn strides(&self, channels: usize) -> [usize; 5] {
        let row = self.pitch() * channels;
        let picture = (self.height + 2) * row;
        [picture, picture, row, channels, 1]
    }

    /// Whether `tensor` lies so, with as many values around its pixels.
    pub(super) fn holds(&self, tensor: &CubeTensor) -> bool {
        let [.., channels] = *tensor.meta.shape().to_vec().as_slice() else {
            return false;
        };
        let wanted = self.strides(channels);
        let found = tensor.meta.strides();
        // An axis of one step may have any stride.
        let shape = tensor.meta.shape();
        (0..5).all(|axis| shape[axis] == 1 || found[axis] == wanted[axis]) && found[2] == wanted[2]
    }
}

/// Where a result goes.
pub(super) struct Output {
    tensor: CubeTensor,
    pub(super) matrix: Matrix,
}

impl Output {
    pub(super) fn new(like: &CubeTensor, within: &Within, channels: usize) -> Self {
        let shape = [within.batch, 1, within.height + 2, within.pitch(), channels];
        let tensor = cube::empty_like(like, &shape, like.dtype);
        let before = (within.pitch() + 1) * channels * like.dtype.size();
        let handle = tensor.handle.clone().offset_start(before as u64);
        let matrix = Matrix::contiguous(handle, [within.pixels(), channels]);
        Self { tensor, matrix }
    }

    /// The pixels within the border, of the first channels.
    pub(super) fn tensor(self, within: &Within, channels: usize) -> RawTensor {
        let strides = within.strides(self.matrix.columns);
        let shape = [within.batch, 1, within.height, within.width, channels];
        cube::wrap(cube::view(self.tensor, self.matrix.handle, &shape, &strides))
    }
}

/// A tensor `[B, T, H, W, C]` where it lies; without gaps within a pixel.
pub(super) fn pictures(tensor: &CubeTensor, element: Element) -> Pictures {
    let strides: Vec<usize> = tensor.meta.strides().to_vec();
    let tensor = match strides[4] == 1 && strides[..4].iter().all(|it| it.is_multiple_of(8)) {
        true => tensor.clone(),
        false => cube::contiguous(tensor.clone()),
    };
    let axes = <[usize; 5]>::try_from(tensor.meta.shape().to_vec()).expect("five axes, as was checked");
    let strides: Vec<usize> = tensor.meta.strides().to_vec();
    let strides = [strides[0], strides[1], strides[2], strides[3]];
    let reach: usize = axes
        .iter()
        .zip(strides)
        .map(|(axis, stride)| (axis - 1) * stride)
        .sum();
    Pictures {
        buffer: Buffer {
            handle: tensor.handle.clone(),
            length: reach + axes[4],
            element,
        },
        axes,
        strides,
    }
}

/// The pixels of a tensor as rows of a product's result: where it lies if it lies within such a border, else copied to one.
pub(super) fn within_border(tensor: &RawTensor, within: &Within, dtype: DType) -> Result<Handle, Refusal> {
    let Some(found) = cube::read(tensor) else {
        return Err(Refusal::because("a plain tensor of a CubeCL device"));
    };
    let found = cube::cast(found.clone(), dtype);
    let shape = found.meta.shape().to_vec();
    let channels = shape[4];
    if !channels.is_multiple_of(8) {
        return Err(Refusal::because("channels in eights"));
    }
    if within.holds(&found) {
        return Ok(found.handle);
    }
    let element = if dtype == DType::F16 {
        Element::F16
    } else {
        Element::Bf16
    };
    let bordered = Bordered {
        border: [1, 1],
        frames_before: 0,
        repeat: 1,
        silu: false,
    };
    let from = pictures(&found, element);
    let copy = cube::empty_like(&found, &bordered.axes(from.axes), dtype);
    let to = Buffer {
        handle: copy.handle.clone(),
        length: copy.meta.shape().iter().product(),
        element,
    };
    border(&found.client, &from, None, &to, bordered).expect("sizes are those of the tensors");
    let before = (within.pitch() + 1) * channels * dtype.size();
    Ok(copy.handle.offset_start(before as u64))
}
