//! Configs without what stores weights in fewer bits: to measure on the weights of the file.

use crate::failure::Failure;
use flow_accel::AcceleratorRegistry;
use flow_config::Config;

/// `config` without the entries of `acceleration.shared` that store frozen weights in low precision. `asked` is the option that wants it.
pub fn of(config: &Config, accelerators: &AcceleratorRegistry, asked: &str) -> Result<Config, Failure> {
    let mut full = config.clone();
    let shared = &mut full.acceleration.shared;
    let before = shared.len();
    shared.retain(|entry| accelerators.low_precision(std::slice::from_ref(entry)).is_none());
    if shared.len() == before {
        return Err(Failure::Input(format!(
            "nothing in `acceleration.shared` stores weights in fewer bits, so the weights are those of the file. Leave out `{asked}`, or \
             add `--set 'acceleration.shared={{ name = \"low_precision\", params = {{ compute = \"storage\", format = \"fp8\" }} }}'`"
        )));
    }
    Ok(full)
}
