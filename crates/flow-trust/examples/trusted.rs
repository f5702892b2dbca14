//! Says whether a server is trusted: `cargo run -p flow-trust --example trusted -- https://example.org`.

use flow_trust::tls_config;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("which address?")?;
    let tls = tls_config(&|name| std::env::var(name).ok())?;
    let config = ureq::Agent::config_builder().tls_config(tls).build();
    let answer = ureq::Agent::from(config).get(&url).call()?;
    println!("{url} is trusted, and answers {}", answer.status());
    Ok(())
}
