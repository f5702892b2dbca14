//! The compile check: the CUDA source of kernels that the tables choose goes through NVRTC and ptxas of CUDA 13.0, without a
//! GPU. Nothing may spill, or make ptxas wait after each `wgmma` (C75xx); `mma` keeps to 128 registers where two blocks fit
//! on a multiprocessor.
//!
//! `cargo xtask ptx` fetches the compilers and runs this; they are looked for where CubeCL does, at `CUDA_PATH`.

use flow_cube::compile_check::{self, CheckedKernel, Compiler};
use flow_cube::wgmma::OperandType;
use flow_matmul_cube::Element;
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan};
use flow_matmul_cube::problem::{Accumulation, Activation, Epilogue, Layout, Matmul, Storage};
use flow_matmul_cube::sources::{Source, code_sources, source};
use flow_matmul_cube::wgmma::select::{Shape, shape, shapes_of_codes, tiling};
use std::collections::BTreeMap;

/// Calls with every epilogue, as layers make them.
fn problems() -> Vec<Matmul> {
    let plain = |layout| Matmul::plain(layout, [4096, 4096, 4096], Element::Bf16);
    let with = |layout, rank, bias, epilogue| Matmul {
        rank,
        bias,
        epilogue,
        ..plain(layout)
    };
    let gelu = Activation::GeluTanh;
    let keep = |keep_sum| Epilogue::Activate {
        activation: gelu,
        keep_sum,
    };
    vec![
        with(Layout::Nt, 0, true, Epilogue::Store),
        with(Layout::Nt, 32, true, Epilogue::Store),
        with(Layout::Nt, 0, true, keep(true)),
        with(Layout::Nt, 32, true, keep(false)),
        with(Layout::Nt, 0, true, Epilogue::GateAndAdd { tokens: 256 }),
        with(Layout::Nt, 32, true, Epilogue::GateAndAdd { tokens: 256 }),
        plain(Layout::Nn),
        with(Layout::Nn, 32, false, Epilogue::Store),
        with(Layout::Nn, 0, false, Epilogue::Add),
        with(Layout::Nn, 32, false, Epilogue::Add),
        with(Layout::Nn, 32, false, Epilogue::TimesDerivative(gelu)),
        Matmul {
            output: Element::F32,
            ..plain(Layout::Tn)
        },
        Matmul {
            output: Element::F32,
            epilogue: Epilogue::Accumulate,
            ..plain(Layout::Tn)
        },
        Matmul {
            element: Element::F16,
            output: Element::F16,
            bias: true,
            ..plain(Layout::Nt)
        },
    ]
}

/// Forward calls of [`problems`] in bf16, with codes; and gradients of inputs, whose second factors lie transposed then, and whose sums are
/// promoted.
fn problems_of_codes(accumulation: Accumulation) -> impl Iterator<Item = Matmul> {
    let has_codes = move |call: &Matmul| match call.layout {
        Layout::Nt => true,
        Layout::Nn => accumulation == Accumulation::Promoted,
        Layout::Tn => false,
    };
    let calls = problems()
        .into_iter()
        .filter(move |call| has_codes(call) && call.element == Element::Bf16);
    calls.map(move |call| Matmul {
        layout: Layout::Nt,
        storage: Storage::E4m3(accumulation),
        ..call
    })
}

/// Tiles by themselves, for a call whose summands are whole.
fn whole(call: &Matmul, operand_type: OperandType, kind: Shape) -> Plan {
    let tiles = shape(call, operand_type, kind);
    let tiling = tiling(&tiles, 132);
    Plan::Wgmma { tiles, tiling }
}

fn capabilities(shared_bytes: usize) -> DeviceCapabilities {
    DeviceCapabilities {
        multiprocessors: 132,
        hopper: true,
        ampere: true,
        shared_bytes,
    }
}

fn compiler() -> Compiler {
    let root = std::env::var_os("CUDA_PATH")
        .expect("CUDA_PATH is not set: run `cargo xtask ptx`, which fetches CUDA's compilers and sets it");
    Compiler::new(root.as_ref()).unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles all sources; what is wrong.
fn compile(
    arch: &str,
    sources: &BTreeMap<String, Source>,
    registers: usize,
    shared_bytes: usize,
) -> Vec<String> {
    let gated: Vec<CheckedKernel<'_>> = sources
        .iter()
        .map(|(name, source)| CheckedKernel {
            arch,
            name,
            text: &source.cuda.text,
            budget: registers,
        })
        .collect();
    let mut wrong = compile_check::check(&compiler(), &gated);
    println!("{} kernels compiled for {arch}", gated.len());
    let bytes = |source: &Source| source.cuda.shared_memory_bytes;
    let large = sources.iter().filter(|(_, source)| bytes(source) > shared_bytes);
    wrong.extend(
        large.map(|(name, source)| format!("{name} for {arch}: {} bytes of shared memory", bytes(source))),
    );
    wrong
}

/// The source of a plan for `wgmma`, whose tiles count its shared memory.
fn counted(call: &Matmul, plan: Plan) -> Source {
    let source = source(call, &plan).expect("CubeCL compiles the kernels");
    let Plan::Wgmma { tiles, .. } = plan else {
        panic!("{}: a plan for another kernel", source.name);
    };
    assert_eq!(
        source.cuda.shared_memory_bytes,
        tiles.shared_bytes(),
        "{}: the tiles count their shared memory",
        source.name
    );
    source
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn wgmma_kernels_for_fp8_keep_their_registers_and_stay_asynchronous() {
    let mut sources = BTreeMap::new();
    for accumulation in [Accumulation::Promoted, Accumulation::Fast] {
        for call in problems_of_codes(accumulation) {
            for kind in shapes_of_codes(&call) {
                let source = counted(&call, whole(&call, OperandType::Bf16, *kind));
                sources.insert(source.name.clone(), source);
            }
        }
    }
    let wrong = compile("sm_90a", &sources, 255, 227 * 1024);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_sum_of_codes_is_scaled_and_rounded_before_its_bias_is_added_whatever_the_tiles() {
    let call = Matmul {
        bias: true,
        storage: Storage::E4m3(Accumulation::Promoted),
        ..Matmul::plain(Layout::Nt, [4096; 3], Element::Bf16)
    };
    for kind in shapes_of_codes(&call) {
        let tiles = shape(&call, OperandType::Bf16, *kind);
        let source = counted(&call, whole(&call, OperandType::Bf16, *kind));
        // A thread has a sum for every other column. With a bias in some of them, bits would depend on the tiles.
        let products = source.cuda.text.matches("fma(").count();
        assert_eq!(products, tiles.columns / 2, "{kind:?}");
    }
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn wgmma_kernels_keep_their_registers_and_stay_asynchronous() {
    let mut sources = BTreeMap::new();
    for call in problems() {
        let operand_type = call.element.operand_type().unwrap_or(OperandType::Bf16);
        for kind in [Shape::PingPong, Shape::Wide, Shape::Small, Shape::Narrow] {
            let source = counted(&call, whole(&call, operand_type, kind));
            sources.insert(source.name.clone(), source);
        }
    }
    let wrong = compile("sm_90a", &sources, 255, 227 * 1024);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn mma_kernels_keep_their_registers_on_all_architectures() {
    // Shared memory of a block (CUDA programming guide, table of technical specifications).
    // For compute capability 8.0 ptxas gives weight gradients a few registers more, and one block fits instead of two.
    for (arch, shared_bytes, registers) in [
        ("sm_80", 163 * 1024, 136),
        ("sm_89", 99 * 1024, 128),
        ("sm_90a", 227 * 1024, 128),
    ] {
        let mut sources = BTreeMap::new();
        for call in problems() {
            // Layers of experts are those without a second pair; their weight gradients have no bias.
            let grouped = Matmul { groups: 8, ..call };
            // Codes are scaled where the layout lets them be.
            let codes = Matmul {
                storage: Storage::E4m3(Accumulation::Promoted),
                ..call
            };
            for call in [call, grouped, codes] {
                let Ok(plan) = Plan::mma(&call, capabilities(shared_bytes)) else {
                    continue;
                };
                let source = source(&call, &plan).expect("CubeCL compiles the kernels");
                sources.insert(source.name.clone(), source);
            }
        }
        let wrong = compile(arch, &sources, registers, shared_bytes);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn kernels_that_quantise_and_widen_keep_their_registers() {
    let mut sources = BTreeMap::new();
    for element in [Element::F32, Element::F16, Element::Bf16] {
        for columns in [77, 1152, 1536, 6144] {
            for source in code_sources(element, columns).expect("CubeCL compiles the kernels") {
                sources.insert(source.name.clone(), source);
            }
        }
    }
    let wrong = compile("sm_90a", &sources, 64, 48 * 1024);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn the_portable_kernel_compiles_for_layers_of_experts_and_others() {
    let mut sources = BTreeMap::new();
    for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
        for element in [Element::F32, Element::Bf16] {
            for groups in [0, 8] {
                let call = Matmul {
                    groups,
                    bias: layout != Layout::Tn,
                    ..Matmul::plain(layout, [4096, 4096, 4096], element)
                };
                let source = source(&call, &Plan::Portable).expect("CubeCL compiles the kernel");
                sources.insert(source.name.clone(), source);
            }
        }
    }
    assert_eq!(sources.len(), 12);
    let wrong = compile("sm_90a", &sources, 128, 48 * 1024);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
