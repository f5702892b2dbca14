//! The portable kernels on Vulkan, on the cases. Needs a Vulkan driver: Mesa's lavapipe will do, as in CI.

use cubecl::prelude::*;
use flow_attention_cube::Element;
use flow_attention_cube::cases::{Buffers, Case, Data, MaskKind, Operand, Results, cases, reference};
use flow_attention_cube::portable::{Call, PortableMask, backward, forward};
use flow_attention_cube::problem::Refusal;
use flow_attention_mask::{Mask, Sizes};

fn client() -> Client {
    flow_cube::vulkan::client().unwrap_or_else(|none| panic!("{none}"))
}

/// A forward and a backward pass; their results, and the bytes of these.
fn run(client: &Client, case: &Case, data: &Data) -> Result<(Results, Vec<Vec<u8>>), Refusal> {
    // More rows than there are, to see that they are left alone.
    let rows = case.queries + 5;
    let buffers = Buffers::new(client, case, data, rows);
    let mask = case.mask.mask(case.sizes());
    let mask = mask.map_err(|error| Refusal::because(error.to_string()))?;
    let mask = PortableMask::new(client, &mask, case.sizes(), case.head_dim)?;
    let call = Call {
        q: &buffers.q,
        kv_segments: &buffers.kv_segments,
        scale: case.scale as f32,
        element: case.element,
        mask: &mask,
    };
    forward(client, &call, &buffers.o, &buffers.lse)?;
    let (o, d_o, dq) = (&buffers.o, &buffers.d_o, &buffers.dq);
    backward(
        client,
        &call,
        o,
        d_o,
        &buffers.lse,
        &buffers.delta,
        dq,
        &buffers.gradients,
    )?;
    let bytes = buffers.bytes(client).expect("what was written can be read");
    let results = buffers
        .results(case, data, &bytes)
        .expect("nothing else was written");
    let memory = Element::F32.decode(&bytes[1]);
    assert!(
        memory
            .chunks(rows)
            .all(|head| head[case.queries..].iter().all(|x| x.is_nan())),
        "{case:?}"
    );
    Ok((results, bytes))
}

/// Runs every case twice and lists what is wrong.
fn check(client: &Client, element: Element, head_dims: &[usize]) {
    let mut wrong = Vec::new();
    for case in cases(element)
        .iter()
        .filter(|case| head_dims.contains(&case.head_dim))
    {
        let data = Data::new(case, 7);
        let pass = || run(client, case, &data).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        let ((results, first), (_, second)) = (pass(), pass());
        if first != second {
            wrong.push(format!("{case:?}: two runs differ"));
        }
        let judgement = reference(case, &data)
            .expect("the masks of the cases fit")
            .compare(case, &results);
        if !judgement.holds() {
            wrong.push(format!("{case:?}: {judgement}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_catalogue_holds_in_f32() {
    check(&client(), Element::F32, &[13, 64, 72, 96, 128, 256]);
}

#[test]
fn the_catalogue_holds_in_f16() {
    // Other widths differ from f32 in the type alone, and each takes seconds to compile.
    check(&client(), Element::F16, &[64, 128]);
}

#[test]
fn bf16_holds_where_the_device_has_it_and_is_declined_with_advice_elsewhere() {
    let client = client();
    let case = Case {
        element: Element::Bf16,
        ..Case::new(8, 8, 8)
    };
    match run(&client, &case, &Data::new(&case, 1)) {
        Ok(_) => check(&client, Element::Bf16, &[64, 128]),
        Err(error) => assert!(error.to_string().contains("bf16; use f32"), "{error}"),
    }
}

#[test]
fn results_do_not_depend_on_batch_mates_nor_on_the_place_in_the_batch() {
    let client = client();
    let case = Case {
        batch: 3,
        mask: MaskKind::Causal,
        ..Case::new(77, 90, 64)
    };
    let data = Data::new(&case, 3);
    let (interleaved_heads, _) = run(&client, &case, &data).expect("it runs");
    for entry in 0..case.batch {
        let alone = Case { batch: 1, ..case };
        let take = |operand: &Operand| {
            let length = operand.values.len() / case.batch;
            let [_, heads, tokens, channels] = operand.shape;
            Operand::new(
                &alone,
                [1, heads, tokens, channels],
                operand.values[entry * length..][..length].to_vec(),
            )
        };
        let part = Data {
            q: take(&data.q),
            k: [take(&data.k[0]), take(&data.k[1])],
            v: [take(&data.v[0]), take(&data.v[1])],
            d_o: take(&data.d_o),
        };
        let (results, _) = run(&client, &alone, &part).expect("it runs");
        let pairs = [
            (&results.o, &interleaved_heads.o),
            (&results.lse, &interleaved_heads.lse),
            (&results.dq, &interleaved_heads.dq),
            (&results.dk[0], &interleaved_heads.dk[0]),
            (&results.dv[0], &interleaved_heads.dv[0]),
        ];
        for (alone, interleaved_heads) in pairs {
            assert_eq!(**alone, interleaved_heads[entry * alone.len()..][..alone.len()]);
        }
    }
}

/// Fails unless a forward pass is declined with words that hold `part`.
fn declines(client: &Client, case: &Case, change: impl Fn(&mut Buffers), mask: Sizes, part: &str) {
    let mut buffers = Buffers::new(client, case, &Data::new(case, 1), case.queries);
    change(&mut buffers);
    let Buffers {
        q,
        kv_segments,
        o,
        lse,
        ..
    } = &buffers;
    let mask = PortableMask::new(client, &Mask::Causal, mask, case.head_dim).expect("a mask");
    let call = Call {
        q,
        kv_segments,
        scale: 1.0,
        element: case.element,
        mask: &mask,
    };
    let error = forward(client, &call, o, lse).expect_err(part).to_string();
    assert!(error.contains(part), "`{error}` does not say `{part}`");
}

#[test]
fn what_the_kernels_do_not_take_is_declined_with_the_reason() {
    let client = client();
    let case = Case::new(4, 5, 8);
    let sizes = case.sizes();
    declines(
        &client,
        &Case {
            head_dim: 257,
            ..case
        },
        |_| {},
        sizes,
        "heads of 257 channels",
    );
    let odd = Case {
        heads: 3,
        kv_heads: 2,
        ..case
    };
    declines(
        &client,
        &odd,
        |_| {},
        sizes,
        "3 heads of queries do not divide among 2",
    );
    declines(&client, &case, |on| on.kv_segments.clear(), sizes, "0 segments");
    declines(
        &client,
        &case,
        |on| on.kv_segments[0].v.shape[2] = 3,
        sizes,
        "`v` is [2, 2, 3, 8]",
    );
    declines(
        &client,
        &case,
        |on| on.o.shape[3] = 9,
        sizes,
        "`o` is [2, 2, 4, 9]",
    );
    declines(
        &client,
        &case,
        |on| on.q.strides[2] = 800,
        sizes,
        "`q` reaches element",
    );
    declines(
        &client,
        &case,
        |on| on.kv_segments[0].k.strides[0] = 4000,
        sizes,
        "check its shape and strides",
    );
    declines(&client, &case, |on| on.lse.rows = 3, sizes, "`lse`");
    declines(&client, &case, |_| {}, Sizes::new(2, 4, 9), "[9, 0]");
}
