//! Names that someone may have meant: `cargo run --release -p flow-registry --example nearest -- NAME`.

use flow_registry::Registry;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut planets = Registry::new("planet");
    for (name, moons) in [("mercury", 0), ("venus", 0), ("earth", 1), ("mars", 2)] {
        planets.register(name, moons)?;
    }
    planets.remove("pluto", "is a dwarf planet now", "Ask for `mars`")?;
    let asked = std::env::args().nth(1).unwrap_or_else(|| "Pluto".into());
    match planets.find(&asked) {
        Ok(moons) => println!("{asked} has {moons} moons"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}
