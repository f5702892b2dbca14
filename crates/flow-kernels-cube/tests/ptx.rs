//! The compile check: the CUDA source of every kernel, for the channels of known models, goes through NVRTC and ptxas of
//! CUDA 13.0, without a GPU. Nothing may spill. `cargo xtask ptx` fetches the compilers and runs this.

use flow_cube::compile_check::{self, CheckedKernel, Compiler};
use flow_cube::ptx_interpreter::{Kernel, Memory, Parameter, ThreadIndex};
use flow_kernels_cube::Element;
use flow_kernels_cube::sources::sources;
use flow_rng::{Purpose, Stream, philox4x32_10};

/// Heads of DiT, SD3.5 and Wan, their widths, and an inner one.
const CHANNELS: [usize; 6] = [64, 72, 128, 1152, 1536, 4608];

/// The compilers, where CubeCL looks for them.
fn compiler() -> Compiler {
    let root = std::env::var_os("CUDA_PATH");
    let root = root
        .expect("CUDA_PATH is not set: run `cargo xtask ptx`, which fetches CUDA's compilers and sets it");
    Compiler::new(root.as_ref()).unwrap_or_else(|error| panic!("{error}"))
}

/// Registers that a thread may have: three blocks of 128 threads on a multiprocessor.
const BUDGET: usize = 168;

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn no_kernel_spills_registers() {
    let elements = [Element::F32, Element::F16, Element::Bf16];
    let all: Vec<_> = elements
        .into_iter()
        .flat_map(|element| CHANNELS.map(|channels| sources(element, channels)))
        .map(|sources| sources.expect("CubeCL compiles the kernels"))
        .collect();
    let gated: Vec<CheckedKernel<'_>> = all
        .iter()
        .flatten()
        .map(|source| CheckedKernel {
            arch: "sm_90a",
            name: &source.name,
            text: &source.cuda.text,
            budget: BUDGET,
        })
        .collect();
    let wrong = compile_check::check(&compiler(), &gated);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Blocks of an address of which a pair's angle is so near a multiple of pi/2 that more of pi is subtracted: the upper word is
/// that of the multiple, and half of the angle's bits are lost. One in some hundred thousand.
fn blocks_near_a_turn(stream: &Stream, sample: u64, step: u32, blocks: u32) -> Vec<u32> {
    let [a, b, c] = stream.address(sample, step);
    let near = |word: u32| {
        let angle = std::f64::consts::TAU * f64::from(word) / 4_294_967_296.0;
        let turns = (angle / std::f64::consts::FRAC_PI_2).round();
        let rest = (angle - turns * std::f64::consts::FRAC_PI_2).abs();
        turns > 0.0 && rest * 65_536.0 < angle / 2.0
    };
    let is_near = |block: &u32| {
        let words = philox4x32_10([*block, a, b, c], stream.key());
        near(words[1]) || near(words[3])
    };
    (0..blocks).filter(is_near).collect()
}

#[test]
#[ignore = "needs the compilers of CUDA 13.0: `cargo xtask ptx` runs it"]
fn what_the_compiler_makes_of_drawn_noise_has_the_bits_of_the_host() {
    let compiler = compiler();
    let (samples, step) = ([5u64, (1 << 40) + 9], 77);
    let stream = Stream::new(0xFEDC_BA98_7654_3210, Purpose::SdeNoise);
    let (addresses, values) = (1u64 << 40, 1u64 << 41);
    let blocks = 2_000_000;
    let near = blocks_near_a_turn(&stream, samples[1], step, blocks);
    assert!(near.len() > 20, "{near:?}");
    let length = 4 * blocks;
    let mut host = vec![0.0f32; length as usize];
    for (name, width) in [
        ("draw_normals", 4),
        ("draw_normals_of_pairs", 2),
        ("draw_normals_of_one", 1),
    ] {
        let sources = sources(Element::F32, 64).expect("CubeCL compiles the kernels");
        let source = sources
            .iter()
            .find(|source| source.name == format!("{name}_f32_64"));
        let source = source.unwrap_or_else(|| panic!("no kernel {name}"));
        let ptx = compiler
            .ptx("sm_90a", &source.cuda.text)
            .expect("NVRTC compiles it");
        let kernel = Kernel::read(&ptx).expect("a kernel");
        let mut memory = Memory::new();
        for (row, sample) in (0u64..).zip(samples) {
            let [_, low, high] = stream.address(sample, step);
            memory.insert(addresses + 8 * row, low);
            memory.insert(addresses + 8 * row + 4, high);
        }
        let [key_low, key_high] = stream.key();
        let scalars = [
            samples.len() as u32,
            length / width,
            stream.address(0, step)[0],
            key_low,
            key_high,
        ];
        let parameters = [
            Parameter::Address(addresses),
            Parameter::Address(values),
            Parameter::Words(scalars.to_vec()),
        ];
        for (row, sample) in (0u32..).zip(samples) {
            stream.at(sample, step).fill_normal(&mut host);
            let blocks = (0..64).chain(near.iter().copied().filter(|_| row == 1));
            for block in blocks {
                for vector in block * 4 / width..(block + 1) * 4 / width {
                    let at = row * (length / width) + vector;
                    let place = ThreadIndex {
                        block: at / 256,
                        thread: at % 256,
                    };
                    kernel
                        .run(&parameters, place, &mut memory)
                        .unwrap_or_else(|error| panic!("{error}"));
                    for value in vector * width..(vector + 1) * width {
                        let stored = memory.get(&(values + 4 * u64::from(row * length + value)));
                        let expected = host[value as usize].to_bits();
                        assert_eq!(stored, Some(&expected), "{name}, row {row}, value {value}");
                    }
                }
            }
        }
    }
}
