//! Says what is in a pipeline's folder: `cargo run --release -p flow-diffusers --example folder -- FOLDER [VARIANT]`

use flow_diffusers::{Kind, PipelineFolder};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/flux-dev").into());
    let variant = arguments.next();
    let pipeline = PipelineFolder::open(Path::new(&folder))?;
    println!(
        "{} of diffusers {}",
        pipeline.class(),
        pipeline.version().unwrap_or("?")
    );
    println!("{:?}", pipeline.scheduler()?);
    for component in pipeline.components() {
        let what = match component.kind() {
            Kind::Model => match component.tensors(variant.as_deref()) {
                Ok(tensors) => format!(
                    "{} parameters in {} tensors, {:.1} MB",
                    tensors.parameters(),
                    tensors.len(),
                    tensors.bytes() as f64 / 1e6
                ),
                Err(error) => error.to_string(),
            },
            _ => String::new(),
        };
        println!("{:<16} {:<36} {what}", component.name, component.class);
    }
    match pipeline.check(variant.as_deref()) {
        Ok(_) => println!("whole"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
