//! Writes the CUDA sources of the kernels to a folder, without a GPU.

use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_attention_cube::wgmma::ForwardTiles;
use flow_attention_cube::wgmma::forward::forward;
use flow_cube::offline;
use flow_cube::wgmma::Factor;

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let buffer = || BufferCompilationArg { inplace: None };
    for (d, keys, wgs, stages, pp) in
        [(128, 128, 2, 2, false), (128, 128, 2, 2, true), (128, 176, 2, 2, false), (128, 160, 2, 2, true), (128, 64, 3, 2, false), (64, 128, 2, 2, false), (64, 128, 3, 2, false), (64, 128, 1, 2, false), (64, 256, 2, 2, false), (64, 176, 2, 2, true), (64, 192, 2, 2, true)]
    {
        let tiles = ForwardTiles { head_dim: d, keys, warpgroups: wgs, stages, ping_pong: pp, factor: Factor::Bf16 };
        let name = format!("fwd_d{d}_k{keys}_w{wgs}_s{stages}_p{}", u8::from(pp));
        let definition = forward::Forward::new(
            offline::settings(tiles.threads()),
            offline::h100(),
            offline::target(),
            (), (), (), (), buffer(), (), (), (), (), tiles,
        )
        .define();
        match offline::cuda_source(definition) {
            Ok(source) => {
                println!("{name}: {} bytes shared", source.shared_memory_bytes);
                std::fs::write(format!("{folder}/{name}.cu"), source.text).expect("written");
            }
            Err(error) => println!("{name}: {error}"),
        }
    }
}
