//! Writes the CUDA sources of the kernels: `cargo run --release -p flow-kernels-cube --example emit_kernels -- FOLDER`.

use flow_kernels_cube::Element;
use flow_kernels_cube::sources::sources;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args()
        .nth(1)
        .ok_or("name the folder that the sources go to")?;
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder)?;
    for element in [Element::F32, Element::F16, Element::Bf16] {
        for channels in [64, 72, 128, 1152, 1536, 4608] {
            for source in sources(element, channels)? {
                let path = folder.join(source.name).with_extension("cu");
                std::fs::write(&path, &source.cuda.text)?;
                println!("{}", path.display());
            }
        }
    }
    Ok(())
}
