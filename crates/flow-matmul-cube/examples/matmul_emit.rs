//! Writes the CUDA sources of kernels to a folder, without a GPU: `matmul_emit FOLDER`.

use flow_cube::wgmma::Factor;
use flow_matmul_cube::Element;
use flow_matmul_cube::call::{Activation, Epilogue, Layout, Matmul};
use flow_matmul_cube::run::{Offer, Plan};
use flow_matmul_cube::schedule::Cut;
use flow_matmul_cube::sources::{Source, source};
use flow_matmul_cube::wgmma::select::{Shape, shape};
use std::error::Error;
use std::path::Path;

/// The epilogues that layers use.
fn calls() -> Vec<Matmul> {
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
    for call in calls() {
        // An H100, by the older instructions.
        let offer = Offer {
            multiprocessors: 132,
            hopper: true,
            ampere: true,
            shared_bytes: 227 * 1024,
        };
        write(&folder, source(&call, &Plan::mma(&call, offer)?)?)?;
        if call.rank == 0 && !call.bias {
            let grouped = Matmul { groups: 8, ..call };
            write(&folder, source(&grouped, &Plan::mma(&grouped, offer)?)?)?;
        }
        for kind in [
            Shape::Turns,
            Shape::Wide,
            Shape::Large,
            Shape::Small,
            Shape::Narrow,
        ] {
            let tiles = shape(&call, Factor::Bf16, kind);
            let cut = Cut {
                rows: tiles.rows(),
                columns: tiles.columns,
                group: 16,
                blocks: 132,
                parts: 1,
                balanced: false,
            };
            write(&folder, source(&call, &Plan::Wgmma { tiles, cut })?)?;
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
