//! Writes the CUDA sources of kernels to a folder, without a GPU: `matmul_emit FOLDER`.

use flow_cube::wgmma::OperandType;
use flow_matmul_cube::Element;
use flow_matmul_cube::prepared::{DeviceCapabilities, Plan};
use flow_matmul_cube::problem::{Activation, Epilogue, Layout, Matmul};
use flow_matmul_cube::sources::{Source, source};
use flow_matmul_cube::wgmma::select::{Shape, shape, tiling};
use std::error::Error;
use std::path::Path;

/// The epilogues that layers use.
fn problems() -> Vec<Matmul> {
    let plain = |layout| Matmul::plain(layout, [4096, 4096, 4096], Element::Bf16);
    let forward = |epilogue| Matmul {
        bias: true,
        rank: 32,
        epilogue,
        ..plain(Layout::Nt)
    };
    vec![
        plain(Layout::Nt),
        plain(Layout::Nn),
        Matmul {
            output: Element::F32,
            epilogue: Epilogue::Accumulate,
            ..plain(Layout::Tn)
        },
        forward(Epilogue::Activate {
            activation: Activation::GeluTanh,
            keep_sum: true,
        }),
        forward(Epilogue::GateAndAdd { tokens: 1 }),
        Matmul {
            epilogue: Epilogue::TimesDerivative(Activation::GeluTanh),
            rank: 32,
            ..plain(Layout::Nn)
        },
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: matmul_emit FOLDER")?;
    std::fs::create_dir_all(&folder)?;
    for call in problems() {
        // An H100, by the older instructions.
        let capabilities = DeviceCapabilities {
            multiprocessors: 132,
            hopper: true,
            ampere: true,
            shared_bytes: 227 * 1024,
        };
        write(&folder, source(&call, &Plan::mma(&call, capabilities)?)?)?;
        if call.rank == 0 && !call.bias {
            let grouped = Matmul { groups: 8, ..call };
            write(&folder, source(&grouped, &Plan::mma(&grouped, capabilities)?)?)?;
        }
        for kind in [
            Shape::PingPong,
            Shape::Wide,
            Shape::Large,
            Shape::Small,
            Shape::Narrow,
        ] {
            let tiles = shape(&call, OperandType::Bf16, kind);
            let tiling = tiling(&tiles, capabilities.multiprocessors);
            write(&folder, source(&call, &Plan::Wgmma { tiles, tiling })?)?;
        }
    }
    Ok(())
}

fn write(folder: &str, source: Source) -> std::io::Result<()> {
    println!(
        "{}: {} bytes of shared memory",
        source.name, source.cuda.shared_memory_bytes
    );
    std::fs::write(
        Path::new(folder).join(format!("{}.cu", source.name)),
        source.cuda.text,
    )
}
