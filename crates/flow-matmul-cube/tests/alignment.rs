//! Which operands the tensor cores' kernels take. Needs a Vulkan driver for buffers; nothing is computed.

use flow_matmul_cube::Element;
use flow_matmul_cube::problem::{Layout, Matmul};
use flow_matmul_cube::tensors::{Matrix, Operands};

#[test]
fn what_a_product_runs_on_does_not_depend_on_whether_it_has_one_row() {
    let client = flow_cube::vulkan::client().unwrap_or_else(|none| panic!("{none}"));
    let mut taken = [0; 2];
    for (layout, columns) in [
        (Layout::Nt, 4),
        (Layout::Nt, 10),
        (Layout::Nt, 16),
        (Layout::Tn, 4),
        (Layout::Tn, 24),
    ] {
        let is_taken = [1, 2].map(|rows| {
            // Rows of what is read and written are the batch's: of forward those of its result, of a weight's gradient those
            // that are summed.
            let size = match layout {
                Layout::Tn => [64, columns, rows],
                _ => [rows, columns, 64],
            };
            let call = Matmul::plain(layout, size, Element::Bf16);
            let matrix = |[rows, columns]: [usize; 2]| {
                Matrix::contiguous(client.empty(4 * rows * columns), [rows, columns])
            };
            let (a, b, d) = (
                matrix(call.a_shape(call.k)),
                matrix(call.b_shape(call.k)),
                matrix(call.d_shape()),
            );
            Operands::new(&a, &b, &d).check(&call, true).is_ok()
        });
        assert_eq!(is_taken[0], is_taken[1], "{layout:?} with {columns} columns");
        taken[usize::from(is_taken[0])] += 1;
    }
    assert_eq!(taken, [3, 2]);
}
