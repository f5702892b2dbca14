//! Writes the CUDA sources of the kernels to a folder, without a GPU.

use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_attention_cube::wgmma::{BackwardTiles, ForwardTiles};
use flow_attention_cube::wgmma::backward_keys::backward_keys;
use flow_attention_cube::wgmma::backward_queries::backward_queries;
use flow_attention_cube::wgmma::forward::forward;
use flow_cube::offline;
use flow_cube::wgmma::Factor;

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let buffer = || BufferCompilationArg { inplace: None };
    for (d, keys, wgs, stages, pp) in [(128, 176, 2, 2, true), (128, 64, 1, 1, false), (128, 80, 1, 1, false), (64, 64, 1, 2, false), (64, 80, 1, 2, false), (64, 96, 1, 2, false), (64, 112, 1, 2, false), (64, 128, 1, 1, false), (64, 128, 1, 3, false), (64, 256, 1, 1, false)]
    {
        let tiles = ForwardTiles { head_dim: d, keys, warpgroups: wgs, stages, ping_pong: pp, factor: Factor::Bf16 };
        let name = format!("fwd_d{d}_k{keys}_w{wgs}_s{stages}_p{}", u8::from(pp));
        let definition = forward::Forward::new(
            offline::settings(tiles.threads()),
            offline::h100(),
            offline::target(),
            (), (), (), (), buffer(), (), (), (), (), (), tiles,
        )
        .define();
        write(&folder, &name, definition);
    }
    for (d, passing, wgs, stages) in [(128, 64, 2, 2), (64, 64, 1, 2), (64, 48, 1, 2), (64, 32, 1, 2)] {
        let tiles = BackwardTiles { head_dim: d, passing, warpgroups: wgs, stages, factor: Factor::Bf16 };
        let name = format!("bwdk_d{d}_p{passing}_w{wgs}_s{stages}");
        let definition = backward_keys::BackwardKeys::new(
            offline::settings(tiles.threads()), offline::h100(), offline::target(),
            (), (), (), (), (), (), buffer(), buffer(), (), (), (), (), (), tiles,
        )
        .define();
        write(&folder, &name, definition);
        let name = format!("bwdq_d{d}_p{passing}_w{wgs}_s{stages}");
        let definition = backward_queries::BackwardQueries::new(
            offline::settings(tiles.threads()), offline::h100(), offline::target(),
            (), (), (), (), (), buffer(), buffer(), (), (), (), (), (), (), buffer(), buffer(), (), (), (), (), (), (), tiles,
        )
        .define();
        write(&folder, &name, definition);
    }
}

fn write(folder: &str, name: &str, definition: KernelDefinition) {
    match offline::cuda_source(definition) {
        Ok(source) => {
            println!("{name}: {} bytes shared", source.shared_memory_bytes);
            std::fs::write(format!("{folder}/{name}.cu"), source.text).expect("written");
        }
        Err(error) => println!("{name}: {error}"),
    }
}
