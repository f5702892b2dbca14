//! What a config may say of a plug-in: `cargo run --release -p flow-example-plugins --example explain -- KEY`.

use flow_trainer::Plugins;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut plugins = Plugins::built_in()?;
    flow_example_plugins::register(&mut plugins)?;
    let catalog = plugins.catalog();
    let key = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "algorithm.temperature".into());
    match flow_config::explain(&catalog, &key) {
        Some(docs) => print!("{docs}"),
        None => println!("there is no key `{key}`"),
    }
    Ok(())
}
