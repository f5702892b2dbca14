//! Burn's tensors of a CubeCL device as the kernels of `flow-kernels-cube` take them.

use burn::tensor::DType;
use flow_core::RawTensor;
use flow_core::cube::{self, Client, CubeDevice, CubeTensor};
use flow_kernels_cube::cast::{cast, join};
use flow_kernels_cube::{Buffer, Element, Refusal};

/// A tensor without gaps that begins at a multiple of 16 bytes.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    tensor: CubeTensor,
    element: Element,
}

/// A call that does not fit is a bug of the caller: [`Exec`](flow_core::Exec) checks shapes.
pub(super) fn expect_launched(operation: &str, result: Result<(), Refusal>) {
    if let Err(refused) = result {
        panic!("operation `{operation}`: {refused}");
    }
}

fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 | DType::Flex32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::Bf16,
        other => panic!("kernels of CubeCL devices compute on f32, f16 and bf16, not on {other:?}"),
    }
}

pub(super) fn dtype(element: Element) -> DType {
    match element {
        Element::F32 => DType::F32,
        Element::F16 => DType::F16,
        Element::Bf16 => DType::BF16,
    }
}

fn is_aligned(tensor: &CubeTensor) -> bool {
    tensor.handle.offset_start.unwrap_or(0).is_multiple_of(16)
}

fn buffer(tensor: &CubeTensor, element: Element) -> Buffer {
    Buffer {
        handle: tensor.handle.clone(),
        length: tensor.meta.shape().iter().product(),
        element,
    }
}

/// The tensor, if it has no gaps and is aligned; else a copy.
fn dense(tensor: &CubeTensor) -> CubeTensor {
    let tensor = cube::contiguous(tensor.clone());
    if is_aligned(&tensor) {
        return tensor;
    }
    copied(&tensor, element(tensor.dtype), 1.0)
}

/// A copy in its own memory, of type `to`, times `factor`.
fn copied(tensor: &CubeTensor, to: Element, factor: f32) -> CubeTensor {
    let from = element(tensor.dtype);
    let copy = cube::empty_like(tensor, &tensor.meta.shape().to_vec(), dtype(to));
    expect_launched(
        "cast",
        cast(
            &tensor.client,
            &buffer(tensor, from),
            &buffer(&copy, to),
            factor,
            is_aligned(tensor),
        ),
    );
    copy
}

impl Operand {
    /// Reads `tensor`, copying only what is strided or not aligned.
    ///
    /// # Panics
    /// If it is tracked, or on another device: kernels are chosen by device, so this is a bug.
    pub fn read(tensor: &RawTensor) -> Self {
        let tensor = cube::read(tensor).expect("a kernel for CubeCL devices got a plain tensor of one");
        let tensor = dense(tensor);
        Self {
            element: element(tensor.dtype),
            tensor,
        }
    }

    /// Reads `tensor` as values of type `element`.
    pub fn read_as(tensor: &RawTensor, element: Element) -> Self {
        Self::read(tensor).cast(element)
    }

    /// The same values as type `element`.
    pub fn cast(self, element: Element) -> Self {
        if self.element == element {
            return self;
        }
        Self {
            tensor: copied(&self.tensor, element, 1.0),
            element,
        }
    }

    /// The values times `factor`, as type `element`.
    pub fn times(&self, factor: f32, element: Element) -> Self {
        Self {
            tensor: copied(&self.tensor, element, factor),
            element,
        }
    }

    /// A matrix's columns as rows, in memory of its own.
    pub fn transposed(&self) -> Self {
        let (rows, columns) = self.rows_and_columns();
        let turned = cube::view(
            self.tensor.clone(),
            self.tensor.handle.clone(),
            &[columns, rows],
            &[1, columns],
        );
        Self {
            tensor: dense(&turned),
            element: self.element,
        }
    }

    /// The values of all, which are of one type, times their factors, one behind the other, as type `element` and of `shape`.
    ///
    /// # Panics
    /// If they are none, more than [`MOST_JOINED`](flow_kernels_cube::cast::MOST_JOINED), or not as many values as `shape` has.
    pub fn joined(parts: &[(&Self, f32)], shape: &[usize], element: Element) -> Self {
        let joined = parts[0].0.empty(shape, element);
        let parts: Vec<(Buffer, f32)> = parts
            .iter()
            .map(|(part, factor)| (part.buffer(), *factor))
            .collect();
        expect_launched("join", join(joined.client(), &parts, &joined.buffer()));
        joined
    }

    /// Room on the same device, its values unspecified.
    pub fn empty(&self, shape: &[usize], element: Element) -> Self {
        Self {
            tensor: cube::empty_like(&self.tensor, shape, dtype(element)),
            element,
        }
    }

    /// Room on the device of `like`, whatever type that has, its values unspecified.
    pub fn empty_beside(like: &CubeTensor, shape: &[usize], element: Element) -> Self {
        Self {
            tensor: cube::empty_like(like, shape, dtype(element)),
            element,
        }
    }

    /// Room for 32-bit integers on the same device.
    pub fn empty_indices(&self, shape: &[usize]) -> CubeTensor {
        cube::empty_like(&self.tensor, shape, DType::I32)
    }

    /// Room for as many values of the same type.
    pub fn empty_like(&self) -> Self {
        self.empty(&self.shape(), self.element)
    }

    pub fn shape(&self) -> Vec<usize> {
        self.tensor.meta.shape().to_vec()
    }

    /// Product of all axes but the last, and the last.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        let shape = self.shape();
        let columns = shape.last().copied().unwrap_or(1);
        let count: usize = shape.iter().product();
        (count.checked_div(columns).unwrap_or(0), columns)
    }

    pub fn device(&self) -> &CubeDevice {
        &self.tensor.device
    }

    pub fn element(&self) -> Element {
        self.element
    }

    pub fn client(&self) -> &Client {
        &self.tensor.client
    }

    pub fn buffer(&self) -> Buffer {
        buffer(&self.tensor, self.element)
    }

    /// The tensor without graph.
    pub fn into_plain(self) -> RawTensor {
        cube::wrap(self.tensor)
    }

    /// The tensor without graph, as type `element`: a gradient has the type of what it is the gradient of.
    pub fn into_plain_as(self, element: Element) -> RawTensor {
        self.cast(element).into_plain()
    }
}

/// Changes `tensor` as `change` says: in place if it is dense, of a type in `allowed` and nothing else holds it, on a copy
/// otherwise; of the first type in `allowed` if it is of none of these.
///
/// # Panics
/// As [`Operand::read`].
pub(super) fn update(tensor: &mut RawTensor, allowed: &[Element], change: impl FnOnce(&Client, &Buffer)) {
    let buffer = dense_mut(tensor, allowed);
    let tensor = cube::read(tensor).expect("it was one before");
    change(&tensor.client, &buffer);
}

/// The memory of `tensor` to be written, made as [`update`] says.
///
/// # Panics
/// As [`Operand::read`].
pub(super) fn dense_mut(tensor: &mut RawTensor, allowed: &[Element]) -> Buffer {
    let tensor = cube::read_mut(tensor).expect("a kernel for CubeCL devices got a plain tensor of one");
    let found = element(tensor.dtype);
    let to = if allowed.contains(&found) {
        found
    } else {
        allowed[0]
    };
    if !tensor.is_contiguous() {
        *tensor = cube::contiguous(tensor.clone());
    }
    if to != found || !is_aligned(tensor) || !tensor.can_mut() {
        *tensor = copied(tensor, to, 1.0);
    }
    buffer(tensor, to)
}

/// The memory of a tensor of bits in a 16-bit type to be written: in place if it is dense and nothing else holds it, on a copy
/// otherwise. (A copy by [`dense_mut`] would go through numbers, and some bits are those of no number.)
///
/// # Panics
/// As [`Operand::read`].
pub(super) fn bits_mut(tensor: &mut RawTensor) -> Buffer {
    let tensor = cube::read_mut(tensor).expect("a kernel for CubeCL devices got a plain tensor of one");
    if !tensor.is_contiguous() || !is_aligned(tensor) || !tensor.can_mut() {
        *tensor = tensor.copy();
    }
    buffer(tensor, Element::Bf16)
}
