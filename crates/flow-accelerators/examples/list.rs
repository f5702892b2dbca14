//! Prints the accelerators with the schema of their parameters.

use flow_accel::AcceleratorRegistry;
use flow_attention::AttentionRegistry;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut backends = AttentionRegistry::default();
    flow_attention::register(&mut backends)?;
    let mut registry = AcceleratorRegistry::default();
    flow_accelerators::register(&mut registry, &backends)?;
    for kind in registry.kinds() {
        println!("{}: {}", kind.name(), kind.summary());
        println!("  {}", serde_json::to_string(kind.schema().as_value())?);
    }
    Ok(())
}
