//! Writes the CUDA sources of the kernels to a folder, without a GPU.

use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_attention_cube::wgmma::backward_keys::backward_keys::BackwardKeys;
use flow_attention_cube::wgmma::backward_queries::backward_queries::BackwardQueries;
use flow_attention_cube::wgmma::forward::forward::Forward;
use flow_attention_cube::wgmma::{BackwardTiles, ForwardTiles, Sums};
use flow_cube::offline;
use flow_cube::wgmma::Factor;

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let b = || BufferCompilationArg { inplace: None };
    let factor = Factor::Bf16;
    for (masked, two_parts) in [(false, false), (true, false), (false, true), (true, true)] {
        let suffix = format!("{}{}", if masked { "_masked" } else { "" }, if two_parts { "_parts" } else { "" });
        for (head_dim, keys, warpgroups, stages, ping_pong) in [
            (128, 176, 2, 2, true), (128, 128, 2, 2, false), (64, 128, 1, 2, false), (72, 128, 1, 2, false), (96, 128, 2, 2, false), (256, 80, 2, 1, false), (40, 128, 1, 2, false),
        ] {
            let tiles = ForwardTiles { head_dim, keys, warpgroups, stages, ping_pong, factor, masked, two_parts };
            let definition = Forward::new(
                offline::settings(tiles.threads()), offline::h100(), offline::target(),
                (), (), (), (), (), (), b(), b(), b(), b(), (), (), (), (), (), (), (), tiles, factor.element(), tiles.vectors(),
            )
            .define();
            write(&folder, &format!("fwd_d{head_dim}_k{keys}_w{warpgroups}{suffix}"), definition);
        }
        for (head_dim, passing, warpgroups, stages, sums) in [(128, 64, 2, 3, Sums::Both), (64, 64, 1, 2, Sums::Both), (256, 64, 1, 2, Sums::Keys), (256, 64, 1, 2, Sums::Values)] {
            let tiles = BackwardTiles { head_dim, passing, warpgroups, stages, factor, sums, masked, two_parts };
            if !two_parts {
                let definition = BackwardKeys::new(
                    offline::settings(tiles.threads()), offline::h100(), offline::target(),
                    (), (), (), (), (), (), b(), b(), b(), b(), b(), (), (), (), (), (), (), tiles, factor.element(), tiles.vectors(),
                )
                .define();
                write(&folder, &format!("bwdk_d{head_dim}_p{passing}_w{warpgroups}_{sums:?}{suffix}"), definition);
            }
            let definition = BackwardQueries::new(
                offline::settings(tiles.threads()), offline::h100(), offline::target(),
                (), (), (), (), (), (), (), b(), b(), (), (), (), (), (), (), b(), b(), b(), b(), b(), (), (), (), (), (), (), (), (),
                tiles, factor.element(), tiles.vectors(),
            )
            .define();
            write(&folder, &format!("bwdq_d{head_dim}_p{passing}_w{warpgroups}{suffix}"), definition);
        }
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
