//! What the frozen matrices of published models take in low precision: the numbers of the page about it.

use flow_core::device::ComputeDevice;
use flow_core::{FlowModel, LowPrecisionCompute, LowPrecisionFormat, LowPrecisionRule};
use flow_models::{Architecture, Flux, FluxConfig, QwenImage, QwenImageConfig, add_lora};

/// Values and bytes of what an adapter run of `model` stores in `format`.
fn stored(model: &dyn Architecture, format: LowPrecisionFormat) -> (usize, usize) {
    let mut layout = (**FlowModel::layout(model)).clone();
    add_lora(model, &mut layout, &["to_q".to_owned()], 4, 4.0).unwrap();
    let rule = LowPrecisionRule {
        format,
        compute: LowPrecisionCompute::Storage,
        keep: Vec::new(),
    };
    let forms = rule.select(&layout, FlowModel::spec(model));
    let values = forms.iter().flatten().map(|form| form.values()).sum();
    let bytes = forms.iter().flatten().map(|form| form.bytes()).sum();
    (values, bytes)
}

#[test]
fn the_blocks_of_flux1_and_qwen_image_take_what_their_shapes_say() {
    let device = ComputeDevice::cpu();
    let flux = Flux::new(&FluxConfig::flux1_dev(), &device).unwrap();
    let qwen_image = QwenImage::new(&QwenImageConfig::published(), &device).unwrap();
    let models: [(&dyn Architecture, usize, usize); 2] = [
        // Blocks with two streams have 36 matrices of 3072 x 3072 in all, those with one stream 15; in rows of 3072: 30 and 11.
        (&flux, 19 * 36 + 38 * 15, 19 * 30 + 38 * 11),
        (&qwen_image, 60 * 36, 60 * 30),
    ];
    for (model, squares, lengths) in models {
        let (values, rows) = (squares * 3072 * 3072, lengths * 3072);
        for (format, bytes) in [
            (LowPrecisionFormat::Fp8, values + 4 * rows),
            (LowPrecisionFormat::Int8, values + 4 * rows),
            // Rows are 3072, 12288 or 15360 long: an even number of whole blocks.
            (LowPrecisionFormat::Nf4, values / 2 + values / 64 * 2),
        ] {
            assert_eq!(
                stored(model, format),
                (values, bytes),
                "{} in {format}",
                model.class_name()
            );
        }
    }
}
