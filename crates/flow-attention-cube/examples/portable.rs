//! The portable kernels on the first CUDA device (or, built with the feature `lavapipe`, on Vulkan): one call spelled
//! out, the whole cases, and times. `cargo run --release --example portable -- cuda bf16`; with a number of tokens
//! behind it, the cases's cases up to that length and no times, as `compute-sanitizer` wants it.

use cubecl::prelude::*;
use flow_attention_cube::Element;
use flow_attention_cube::cases::{Buffers, Case, Data, MaskKind, cases, reference};
use flow_attention_cube::portable::{Call, PortableMask, backward, forward};
use std::error::Error;
use std::time::Instant;

/// Queues a forward and a backward pass.
fn launch(client: &Client, case: &Case, on: &Buffers, mask: &PortableMask) -> Result<(), Box<dyn Error>> {
    let scale = case.scale as f32;
    let call = Call {
        q: &on.q,
        kv_segments: &on.kv_segments,
        scale,
        element: case.element,
        mask,
    };
    forward(client, &call, &on.o, &on.lse)?;
    backward(
        client,
        &call,
        &on.o,
        &on.d_o,
        &on.lse,
        &on.delta,
        &on.dq,
        &on.gradients,
    )?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let device = match arguments.first().map(String::as_str) {
        None | Some("cuda") => cubecl::Device::cuda(0)?,
        Some("vulkan") => cubecl::Device::vulkan(cubecl::device::WgpuDeviceKind::default())?,
        Some(other) => return Err(format!("device `{other}`: allowed are cuda and vulkan").into()),
    };
    let element = match arguments.get(1).map(String::as_str) {
        None | Some("f32") => Element::F32,
        Some("f16") => Element::F16,
        Some("bf16") => Element::Bf16,
        Some(other) => return Err(format!("element type `{other}`: allowed are f32, f16 and bf16").into()),
    };
    let most: Option<usize> = match arguments.get(2).map(|word| (word, word.parse())) {
        None => None,
        Some((_, Ok(tokens))) => Some(tokens),
        Some((word, Err(why))) => return Err(format!("`{word}` is no number of tokens: {why}").into()),
    };
    let client = device.client();
    let (mut right, mut all) = (0, cases(element));
    all.retain(|case| case.queries.max(case.sizes().keys()) <= most.unwrap_or(usize::MAX));
    for case in &all {
        let data = Data::new(case, 7);
        let mask = PortableMask::new(
            &client,
            &case.mask.mask(case.sizes())?,
            case.sizes(),
            case.head_dim,
        )?;
        let pass = || -> Result<_, Box<dyn Error>> {
            let on = Buffers::new(&client, case, &data, case.queries);
            launch(&client, case, &on, &mask)?;
            let bytes = on.bytes(&client)?;
            Ok((on.results(case, &data, &bytes)?, bytes))
        };
        let ((results, first), (_, second)) = (pass()?, pass()?);
        let judgement = reference(case, &data)?.compare(case, &results);
        let same = first == second;
        let holds = judgement.holds() && same;
        right += usize::from(holds);
        let word = if holds { "ok" } else { "WRONG" };
        println!("{word}, twice the same {same}: {case:?}: {judgement}");
    }
    println!(
        "{} {}: {right} of {} cases hold",
        client.name(),
        element.name(),
        all.len()
    );
    if most.is_some() {
        return Ok(());
    }
    for (tokens, head_dim) in [(1024, 64), (4096, 64), (4096, 128)] {
        for mask in [MaskKind::Full, MaskKind::Window] {
            let case = Case {
                heads: 8,
                kv_heads: 8,
                element,
                mask,
                ..Case::new(tokens, tokens, head_dim)
            };
            let on = Buffers::new(&client, &case, &Data::new(&case, 1), tokens);
            let mask = PortableMask::new(&client, &mask.mask(case.sizes())?, case.sizes(), head_dim)?;
            let mut wall_ms = f64::INFINITY;
            for _ in 0..3 {
                launch(&client, &case, &on, &mask)?;
                cubecl::future::block_on(client.sync())?;
                let start = Instant::now();
                launch(&client, &case, &on, &mask)?;
                cubecl::future::block_on(client.sync())?;
                wall_ms = wall_ms.min(start.elapsed().as_secs_f64() * 1e3);
            }
            let pairs = mask.counts().allowed_pairs * (case.batch * case.heads) as u64;
            let tera = 14.0 * (pairs * head_dim as u64) as f64 / wall_ms / 1e9;
            let kind = case.mask;
            println!(
                "{kind:?} B2 H8 S{tokens} D{head_dim}: forward and backward {wall_ms:.2} ms, {tera:.1} TFLOP/s"
            );
        }
    }
    Ok(())
}
