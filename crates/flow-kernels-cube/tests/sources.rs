//! CUDA sources without a GPU: every kernel has one for every type.

use flow_kernels_cube::Element;
use flow_kernels_cube::sources::sources;
use std::collections::HashSet;

#[test]
fn every_kernel_has_a_cuda_source_of_its_own_for_every_type() {
    let elements = [Element::F32, Element::F16, Element::Bf16];
    let all: Vec<_> = elements
        .into_iter()
        .flat_map(|element| sources(element, 72).expect("CubeCL writes the kernels"))
        .collect();
    let names: HashSet<&str> = all.iter().map(|source| &*source.name).collect();
    assert_eq!(names.len(), all.len(), "names differ");
    for kernel in [
        "combine_rows",
        "change_pieces",
        "transform_columns_back",
        "restore_lines",
    ] {
        let name = format!("{kernel}_bf16_72");
        let source = all.iter().find(|source| source.name == name);
        let text = &source.unwrap_or_else(|| panic!("no {name}")).cuda.text;
        assert!(text.contains("__global__"), "{name}");
    }
}
