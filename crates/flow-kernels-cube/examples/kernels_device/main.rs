//! Checks all kernels on a GPU against f64 on the host, in f32, f16 and bf16, then times the large ones.
//!
//! `kernels_device check`, `kernels_device time`, or both without an argument. Built with the feature `lavapipe`, a second
//! argument `vulkan` checks on Vulkan, in f32. Further arguments are the groups to check. Ends with status 1 if something is wrong.

mod timing;

use cubecl::prelude::*;
use flow_kernels_cube::Element;
use flow_kernels_cube::cases::{GROUPS, check};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

fn check_all(client: &Client, elements: &[Element], groups: &[String]) -> bool {
    let mut right = true;
    for element in elements {
        for (group, _) in GROUPS {
            if !groups.is_empty() && !groups.iter().any(|wanted| wanted == group) {
                continue;
            }
            let start = Instant::now();
            let verdict = check(client, *element, group);
            println!(
                "{} {group}: {} comparisons, {} wrong, {:.1} s",
                element.name(),
                verdict.compared,
                verdict.wrong.len(),
                start.elapsed().as_secs_f64()
            );
            for wrong in verdict.wrong.iter().take(20) {
                println!("  WRONG {wrong}");
            }
            right &= verdict.wrong.is_empty();
        }
    }
    right
}

fn run() -> Result<bool, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let what = arguments.first().map(String::as_str);
    if !matches!(what, None | Some("check" | "time")) {
        return Err("the first argument is check or time, or there is none".into());
    }
    let all = [Element::F32, Element::F16, Element::Bf16];
    let (device, elements) = match arguments.get(1).map(String::as_str) {
        None | Some("cuda") => (cubecl::Device::cuda(0)?, &all[..]),
        #[cfg(feature = "lavapipe")]
        Some("vulkan") => {
            let kind = cubecl::device::WgpuDeviceKind::Cpu;
            (cubecl::Device::vulkan(kind)?, &all[..1])
        }
        Some(other) => return Err(format!("device `{other}` is not in this build").into()),
    };
    let client = device.client();
    let mut right = true;
    if what != Some("time") {
        let groups = arguments.get(2..).unwrap_or_default();
        if let Some(unknown) = groups
            .iter()
            .find(|name| GROUPS.iter().all(|(known, _)| known != name))
        {
            return Err(format!(
                "there is no group `{unknown}`; groups are {}",
                GROUPS.map(|(name, _)| name).join(", ")
            )
            .into());
        }
        right = check_all(&client, elements, groups);
        println!("{}", if right { "everything holds" } else { "WRONG" });
    }
    if what != Some("check") && right {
        timing::time_all(&client, elements.last().copied().unwrap_or(Element::F32))?;
    }
    Ok(right)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
