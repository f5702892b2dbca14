//! The portable kernels on Vulkan, on the catalogue. Needs a Vulkan driver: Mesa's lavapipe will do, as in CI.

use cubecl::device::WgpuDeviceKind;
use cubecl::prelude::*;
use flow_attention_cube::Element;
use flow_attention_cube::catalogue::{Case, Data, MaskKind, Operand, Results, cases, reference};
use flow_attention_cube::portable::{Call, Declined, KeyValues, PortableMask, Statistics, backward, forward};
use flow_attention_cube::wgmma::launch::Heads;
use flow_attention_mask::{Mask, Sizes};

/// Mesa's driver for the processor, else the first GPU.
fn client() -> Client {
    let kinds = [WgpuDeviceKind::Cpu, WgpuDeviceKind::DiscreteGpu(0), WgpuDeviceKind::IntegratedGpu(0)];
    let found = kinds.into_iter().find_map(|kind| cubecl::Device::vulkan(kind).ok());
    found
        .expect(
            "this test needs a Vulkan driver and found none: install Mesa's for the processor (Debian: `apt-get install \
             mesa-vulkan-drivers libvulkan1`, from bookworm-backports or newer), or point VK_DRIVER_FILES at lvp_icd.json",
        )
        .client()
}

fn upload(client: &Client, case: &Case, operand: &Operand, memory: &[f64]) -> Heads {
    let bytes = case.element.encode(memory);
    // A buffer cannot be empty.
    let bytes = if bytes.is_empty() { vec![0; 16] } else { bytes };
    Heads { handle: client.create_from_slice(&bytes), shape: operand.shape, strides: operand.strides }
}

fn statistics(client: &Client, case: &Case) -> Statistics {
    // More rows than there are, to see that they are left alone.
    let rows = case.queries + 5;
    let poison = vec![f32::NAN; case.batch * case.heads * rows];
    Statistics { handle: client.create_from_slice(f32::as_bytes(&poison)), rows }
}

/// Bytes of everything a forward and a backward pass write: o, lse, dq, dk, dv, dk and dv of segment 1.
fn run(client: &Client, case: &Case, data: &Data) -> Result<Vec<Vec<u8>>, Declined> {
    let given = |operand: &Operand| upload(client, case, operand, &operand.memory());
    let wanted = |operand: &Operand| upload(client, case, operand, &operand.poison());
    let segments = if case.key_segments[1] == 0 { 1 } else { 2 };
    let pairs = |make: &dyn Fn(&Operand) -> Heads| -> Vec<KeyValues> {
        (0..segments).map(|i| KeyValues { k: make(&data.k[i]), v: make(&data.v[i]) }).collect()
    };
    let (q, d_o, inputs) = (given(&data.q), given(&data.d_o), pairs(&given));
    let (o, dq, gradients) = (wanted(&data.q), wanted(&data.q), pairs(&wanted));
    let (lse, delta) = (statistics(client, case), statistics(client, case));
    let mask = case.mask.mask(case.sizes())?;
    let mask = PortableMask::new(client, &mask, case.sizes(), case.head_dim)?;
    let call =
        Call { q: &q, segments: &inputs, scale: case.scale as f32, element: case.element, mask: &mask };
    forward(client, &call, &o, &lse)?;
    backward(client, &call, &o, &d_o, &lse, &delta, &dq, &gradients)?;
    let mut handles = vec![o.handle, lse.handle, dq.handle];
    handles.extend(gradients.into_iter().flat_map(|pair| [pair.k.handle, pair.v.handle]));
    Ok(handles.into_iter().map(|handle| client.read_one(handle).expect("what was written can be read").to_vec()).collect())
}

/// Results in logical order; says where something was written that should not have been.
fn read(case: &Case, data: &Data, bytes: &[Vec<u8>]) -> Result<Results, String> {
    let tensor = |i: usize, like: &Operand| match bytes.get(i) {
        Some(bytes) => like.read(&case.element.decode(bytes)),
        None => Ok(Vec::new()),
    };
    let rows = case.queries + 5;
    let memory = Element::F32.decode(&bytes[1]);
    let mut lse = Vec::new();
    for head in memory.chunks(rows) {
        lse.extend(&head[..case.queries]);
        if head[case.queries..].iter().any(|x| !x.is_nan()) {
            return Err("rows of lse behind the last query were written".into());
        }
    }
    Ok(Results {
        o: tensor(0, &data.q)?,
        lse,
        dq: tensor(2, &data.q)?,
        dk: [tensor(3, &data.k[0])?, tensor(5, &data.k[1])?],
        dv: [tensor(4, &data.v[0])?, tensor(6, &data.v[1])?],
    })
}

/// Runs every case twice and lists what is wrong.
fn check(client: &Client, element: Element) {
    let mut wrong = Vec::new();
    let all = cases(element);
    for case in &all {
        let data = Data::new(case, 7);
        let t = std::time::Instant::now();
        let first = run(client, case, &data).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        eprintln!("{:6.0} ms first", t.elapsed().as_secs_f64() * 1e3);
        let second = run(client, case, &data).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        eprintln!("{:6.0} ms {case:?}", t.elapsed().as_secs_f64() * 1e3);
        if first != second {
            wrong.push(format!("{case:?}: two runs differ"));
        }
        let expected = reference(case, &data).expect("the catalogue's masks fit");
        match read(case, &data, &first) {
            Err(error) => wrong.push(format!("{case:?}: {error}")),
            Ok(results) => {
                let judgement = expected.judge(case, &results);
                if !judgement.holds() {
                    wrong.push(format!("{case:?}: {judgement}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn the_catalogue_holds_in_f32() {
    check(&client(), Element::F32);
}

#[test]
fn the_catalogue_holds_in_f16() {
    check(&client(), Element::F16);
}

#[test]
fn bf16_holds_where_the_device_has_it_and_is_declined_with_advice_elsewhere() {
    let client = client();
    let case = Case { element: Element::Bf16, ..Case::new(8, 8, 8) };
    match run(&client, &case, &Data::new(&case, 1)) {
        Ok(_) => check(&client, Element::Bf16),
        Err(error) => assert!(error.to_string().contains("bf16; use f32"), "{error}"),
    }
}

#[test]
fn results_do_not_depend_on_batch_mates_nor_on_the_place_in_the_batch() {
    let client = client();
    let case = Case { batch: 3, mask: MaskKind::Causal, ..Case::new(77, 90, 64) };
    let data = Data::new(&case, 3);
    let together = read(&case, &data, &run(&client, &case, &data).expect("it runs")).expect("it is written");
    for entry in 0..case.batch {
        let alone = Case { batch: 1, ..case };
        let take = |operand: &Operand| {
            let length = operand.values.len() / case.batch;
            let [_, heads, tokens, channels] = operand.shape;
            Operand::new(&alone, [1, heads, tokens, channels], operand.values[entry * length..][..length].to_vec())
        };
        let part = Data {
            q: take(&data.q),
            k: [take(&data.k[0]), take(&data.k[1])],
            v: [take(&data.v[0]), take(&data.v[1])],
            d_o: take(&data.d_o),
        };
        let results = read(&alone, &part, &run(&client, &alone, &part).expect("it runs")).expect("it is written");
        let pairs = [
            (&results.o, &together.o),
            (&results.lse, &together.lse),
            (&results.dq, &together.dq),
            (&results.dk[0], &together.dk[0]),
            (&results.dv[0], &together.dv[0]),
        ];
        for (alone, together) in pairs {
            assert_eq!(**alone, together[entry * alone.len()..][..alone.len()]);
        }
    }
}

/// Fails unless a forward pass is declined with words that hold `part`.
fn declines(client: &Client, case: &Case, change: impl Fn(&mut Heads, &mut KeyValues), mask: Sizes, part: &str) {
    let data = Data::new(case, 1);
    let heads = |operand: &Operand| upload(client, case, operand, &operand.memory());
    let (mut q, o) = (heads(&data.q), heads(&data.q));
    let mut pair = KeyValues { k: heads(&data.k[0]), v: heads(&data.v[0]) };
    change(&mut q, &mut pair);
    let mask = PortableMask::new(client, &Mask::Causal, mask, case.head_dim).expect("a mask");
    let call = Call { q: &q, segments: &[pair], scale: 1.0, element: case.element, mask: &mask };
    let error = forward(client, &call, &o, &statistics(client, case)).expect_err(part).to_string();
    assert!(error.contains(part), "`{error}` does not say `{part}`");
}

#[test]
fn what_the_kernels_do_not_take_is_declined_with_the_reason() {
    let client = client();
    let case = Case::new(4, 5, 8);
    let sizes = case.sizes();
    declines(&client, &Case { head_dim: 257, ..case }, |_, _| {}, sizes, "heads of 257 channels");
    let odd = Case { heads: 3, kv_heads: 2, ..case };
    declines(&client, &odd, |_, _| {}, sizes, "3 heads of queries do not divide among 2");
    declines(&client, &case, |_, pair| pair.v.shape[2] = 3, sizes, "`v` is [2, 2, 3, 8]");
    declines(&client, &case, |q, _| q.strides[2] = 800, sizes, "`q` reaches element");
    declines(&client, &case, |_, pair| pair.k.strides[0] = 4000, sizes, "check its shape and strides");
    declines(&client, &case, |_, _| {}, Sizes::new(2, 4, 9), "[9, 0]");
}
