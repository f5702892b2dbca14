//! Writes the CUDA sources of the kernels that the tables choose to a folder, without a GPU: `emit FOLDER [HEAD_DIM…]`.

use flow_attention_cube::mma::Mma;
use flow_attention_cube::prepared::DeviceCapabilities;
use flow_attention_cube::problem::Problem;
use flow_attention_cube::sources::{Source, sources};
use flow_attention_cube::wgmma::Wgmma;
use flow_cube::wgmma::OperandType;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: emit FOLDER [HEAD_DIM…]")?;
    let mut dims = arguments
        .map(|dim| dim.parse())
        .collect::<Result<Vec<usize>, _>>()?;
    if dims.is_empty() {
        dims = vec![64, 128];
    }
    std::fs::create_dir_all(&folder)?;
    // An H100 has 227 KiB of shared memory for a block.
    let capabilities = DeviceCapabilities {
        shared_bytes: 227 * 1024,
    };
    for head_dim in dims {
        for (masked, keys) in [
            (false, [4096, 0]),
            (true, [4096, 0]),
            (false, [512, 0]),
            (false, [4096, 77]),
            (true, [4096, 77]),
        ] {
            let problem = Problem {
                batch: 1,
                heads: 8,
                kv_heads: 8,
                queries: 4096,
                keys,
                head_dim,
                operand_type: OperandType::Bf16,
            };
            write(&folder, sources::<Wgmma>(&problem, masked, capabilities)?)?;
            write(&folder, sources::<Mma>(&problem, masked, capabilities)?)?;
        }
    }
    Ok(())
}

fn write(folder: &str, sources: Vec<Source>) -> std::io::Result<()> {
    for Source { name, cuda } in sources {
        println!("{name}: {} bytes of shared memory", cuda.shared_memory_bytes);
        std::fs::write(Path::new(folder).join(format!("{name}.cu")), cuda.text)?;
    }
    Ok(())
}
