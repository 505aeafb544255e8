//! The surfaces that a machine's steps are priced with.

use engine::cost::{Measured, Parallel, moved};
use engine::error::Result;
use engine::machine::{Machine, Parameter, parameters};
use engine::model::{Attention, Model};
use sha2::{Digest, Sha256};

use super::{Library, name};
use crate::scenario::sketch_machine;
use crate::store::hex;

/// Operations that steps are priced with, and the parameters of a machine that stand for the same in the closed form:
/// where one of those was varied, what the user said counts, and the operation is not looked up.
const OPERATIONS: [(&str, &[&str]); 24] = [
    ("attention_generation", &["kv_read_16bit", "kv_read_8bit", "attention_floor_ns", "attention_floor_8bit_ns"]),
    (
        "attention_context",
        &["kv_read_16bit", "kv_read_8bit", "attention_floor_ns", "attention_floor_8bit_ns", "matmul_bf16"],
    ),
    (
        "attention_mixed",
        &["kv_read_16bit", "kv_read_8bit", "attention_floor_ns", "attention_floor_8bit_ns", "matmul_bf16"],
    ),
    ("mla_generation", &["kv_read_16bit", "kv_read_8bit", "attention_floor_ns", "attention_floor_8bit_ns"]),
    ("mla_context", &["kv_read_16bit", "kv_read_8bit", "attention_floor_ns", "attention_floor_8bit_ns", "matmul_bf16"]),
    ("mla_generation_module", &MODULE),
    ("mla_context_module", &MODULE),
    ("gemm", &["weight_read", "weight_read_8bit", "matmul_bf16", "matmul_fp8", "matmul_fp4"]),
    ("moe", &["weight_read", "weight_read_8bit", "matmul_bf16", "matmul_fp8", "matmul_fp4"]),
    ("all_reduce", &["all_reduce", "scale_up_latency_ns"]),
    ("qkv_proj", &PROFILE),
    ("o_proj", &PROFILE),
    ("gate_up_proj", &PROFILE),
    ("down_proj", &PROFILE),
    ("layernorm", &PROFILE),
    ("rotary_emb", &PROFILE),
    ("act_fn", &PROFILE),
    ("qk_norm", &PROFILE),
    ("embedding", &PROFILE),
    ("final_layernorm", &PROFILE),
    ("lm_head", &PROFILE),
    ("sampler", &PROFILE),
    ("moe_dispatch", &["all_reduce", "scale_up_latency_ns"]),
    ("moe_combine", &["all_reduce", "scale_up_latency_ns"]),
];

/// All that stands for a whole attention module.
const MODULE: [&str; 9] = [
    "kv_read_16bit",
    "kv_read_8bit",
    "attention_floor_ns",
    "attention_floor_8bit_ns",
    "weight_read",
    "weight_read_8bit",
    "matmul_bf16",
    "matmul_fp8",
    "matmul_fp4",
];

/// All that stands for a profile of a whole model but its attention.
const PROFILE: [&str; 3] = ["weight_read", "matmul_bf16", "layer_floor_ns"];

/// Machines that nobody has measured, and the one whose die they have: its times are moved to their rates.
const KIN: [(&str, &str); 3] = [("gb200", "b200"), ("b300", "b200"), ("gb300", "b200")];

/// Operations of which a framework's own kernels were measured under another one too: what TensorRT-LLM runs experts with on
/// Blackwell is in SGLang's tables as `sglang_flashinfer_trtllm_moe`.
const LENT: [(&str, &str, &str); 1] = [("trtllm", "moe", "sglang")];

/// The framework of a serving engine, by the engine's name: `vllm` of `vllm-0.19`.
pub fn framework(engine: &str) -> &str {
    engine.split('-').next().unwrap_or(engine)
}

/// Whether steps of a model run an operation at all.
fn is_needed(op: &str, model: &Model, parallel: Parallel) -> bool {
    let groups = || model.groups.iter();
    match op {
        "all_reduce" => parallel.tensor > 1,
        "moe_dispatch" | "moe_combine" => parallel.data > 1,
        "moe" => groups().any(|group| group.ffn.experts > 0),
        "mla_generation" | "mla_context" | "mla_generation_module" | "mla_context_module" => {
            groups().any(|group| group.kv.attention == Attention::Mla)
        }
        "attention_generation" | "attention_context" | "attention_mixed" => {
            groups().any(|group| matches!(group.kv.attention, Attention::Full | Attention::Sliding { .. }))
        }
        _ => true,
    }
}

impl Library {
    /// What was measured on the machine under the framework, of what steps of the model need on accelerators that are parallel so.
    ///
    /// The shipped surfaces belong to the presets of their devices, and to machines with the same die, whose rates they are
    /// moved to. Surfaces of a folder belong to the machine whose
    /// preset or file has the name of their device. A machine whose rates were varied keeps the surfaces and says so
    /// ([`Measured::peaks`]); one whose efficiencies or fixed times were varied loses those that they stand for.
    ///
    /// # Errors
    /// A folder that cannot be read or holds no surface, and a file that is none.
    pub fn measured(
        &mut self,
        machine: &Machine,
        framework: &str,
        model: &Model,
        parallel: Parallel,
    ) -> Result<Measured> {
        self.check()?;
        let bare = machine.name.split('*').next().unwrap_or_default().trim();
        if self.folder.is_none() && bare != machine.preset {
            return Ok(Measured::default());
        }
        let kin = KIN.iter().find(|(own, _)| *own == machine.preset && self.folder.is_none());
        let device = kin.map_or(machine.preset.as_str(), |(_, device)| device);
        // What the preset lacks may have been given by a variation.
        let (now, before) = (parameters(machine), sketch_machine(bare)?.parameters);
        let varied = |name: &str| value(&now, name) != value(&before, name);
        let mut measured = Measured::default();
        let mut hash = Sha256::new();
        for (op, instead) in OPERATIONS {
            if !is_needed(op, model, parallel) || instead.iter().any(|parameter| varied(parameter)) {
                continue;
            }
            let lent = LENT.iter().filter(|(to, of, _)| (*to, *of) == (framework, op)).map(|(_, _, from)| *from);
            for framework in std::iter::once(framework).chain(lent) {
                let name = name(device, framework, op);
                let Some(bytes) = self.bytes(&name)? else { continue };
                let Some(found) = self.find(&name)? else { continue };
                hash.update(name.as_bytes());
                hash.update(bytes);
                measured.surfaces.push(found.surface.clone());
            }
        }
        let Some(first) = measured.surfaces.first() else { return Ok(measured) };
        measured.peaks = match kin {
            None => Some(moved(first.peaks(), &before, &now)).filter(|moved| moved != first.peaks()),
            // Even at the same rates another machine's times are an extrapolation.
            Some(_) => Some(moved(first.peaks(), &sketch_machine(device)?.parameters, &now)),
        };
        let digest = hash.finalize();
        let short: String = hex(digest.get(..6).unwrap_or_default());
        measured.name = format!("{device} {framework} {short}");
        Ok(measured)
    }
}

fn value(parameters: &[Parameter], name: &str) -> Option<u64> {
    parameters.iter().find(|parameter| parameter.name == name).map(|parameter| parameter.value.to_bits())
}

#[cfg(test)]
mod tests {
    use engine::model::Certainty;

    use engine::surface::Peaks;

    use super::*;
    use crate::scenario::{load_machine, load_model};

    fn of(machine: &str, model: &str, tensor: u32) -> Measured {
        let (machine, model) = (load_machine(machine).unwrap(), load_model(model).unwrap());
        Library::of(None).measured(&machine, framework("vllm-0.19"), &model, Parallel::tensor(tensor)).unwrap()
    }

    fn ops(measured: &Measured) -> Vec<&str> {
        measured.surfaces.iter().map(|surface| surface.op()).collect()
    }

    #[test]
    fn a_machine_has_the_surfaces_of_its_device() {
        let plain = of("h100", "llama-3.1-8b", 1);
        assert_eq!(ops(&plain), ["attention_generation", "attention_context", "gemm"]);
        assert!(plain.peaks.is_none() && plain.name.starts_with("h100 vllm "));
        assert_eq!(ops(&of("h100", "llama-3.1-8b", 2)).last(), Some(&"all_reduce"));
        // A whole model by the names of its layers, and nothing of another one.
        let profile = of("rtx4090", "llama-3.1-8b", 1);
        assert!(ops(&profile).contains(&"qkv_proj") && ops(&profile).contains(&"sampler"));
        assert!(of("vera-rubin", "llama-3.1-8b", 1).surfaces.is_empty());
        // A part that lacks a number until a variation gives it.
        assert!(of("mi455x*bf16_flops=10PFLOPS", "llama-3.1-8b", 1).surfaces.is_empty());
        // The die of B200, at its own rates and on trust.
        let kin = of("gb300", "llama-3.1-8b", 1);
        assert!(kin.name.starts_with("b200 vllm ") && kin.surfaces.len() == 3 && kin.peaks.is_some());
    }

    /// `TensorRT-LLM`'s expert kernels on Blackwell, with SGLang's tables, beside its own table of another kernel.
    #[test]
    fn kernels_that_another_framework_was_measured_with_are_lent() {
        let (machine, model) = (load_machine("b200").unwrap(), load_model("deepseek-r1").unwrap());
        let of = |framework: &str| {
            let found = Library::of(None).measured(&machine, framework, &model, Parallel::tensor(8)).unwrap();
            ops(&found).iter().filter(|op| **op == "moe").count()
        };
        assert_eq!([of("trtllm"), of("sglang"), of("vllm")], [2, 1, 1]);
    }

    #[test]
    fn variations_move_rates_or_put_the_closed_form_back() {
        let more = of("h100*memory_bytes=2*reserve_bytes=2", "llama-3.1-8b", 1);
        assert!(more.peaks.is_none() && more.surfaces.len() == 3);
        let faster = of("h100*hbm_bw=2", "llama-3.1-8b", 1);
        let peaks = faster.peaks.unwrap();
        let device = *faster.surfaces[0].peaks();
        assert_eq!(peaks, Peaks { memory_bytes_per_s: 2.0 * device.memory_bytes_per_s, ..device });
        assert_eq!(ops(&of("h100*kv_read_16bit=0.5", "llama-3.1-8b", 1)), ["gemm"]);
        assert_eq!(ops(&of("h100*matmul_bf16=0.5", "llama-3.1-8b", 1)), ["attention_generation"]);
        assert_eq!(ops(&of("h100*all_reduce=0.5", "llama-3.1-8b", 2)).len(), 3);
    }

    #[test]
    fn a_profiled_model_is_priced_by_its_layers() {
        use engine::cost::{measure, plan};
        use engine::policy::{Stack, shape};
        let planned = |model: &str| {
            let (machine, model) = (load_machine("rtx4090").unwrap(), load_model(model).unwrap());
            let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
            let mut plan = plan(&model, &shape, &machine, model.weights, Parallel::tensor(1)).unwrap();
            let measured = of("rtx4090", &model.name, 1);
            measure(&mut plan, &model, &machine, model.weights, &measured);
            plan
        };
        let profiled = planned("llama-3.1-8b");
        assert!(profiled.groups[0].measured.is_some() && profiled.groups[0].measured_prefill.is_some());
        let lines = profiled.lines.as_ref().unwrap();
        assert!(lines.layers.is_some() && lines.head.is_some() && profiled.layer_floor_ns <= 0.0);
        // 32 layers of 218 M parameters in 16 bits stream in about 15 ms at 1008 GB/s, and norms take their time.
        let one = lines.layers.as_ref().unwrap().at(1.0);
        assert!((13.5e6..17e6).contains(&one.weight_read) && one.overhead > 32.0 * 5000.0, "{one:?}");
        let other = planned("qwen3-1.7b");
        assert!(other.groups[0].measured.is_none() && other.lines.is_none() && other.layer_floor_ns > 0.0);
    }

    #[test]
    fn certainty_follows_what_is_measured() {
        use engine::cost::{measure, plan};
        use engine::policy::{Stack, shape};
        let (machine, model) = (load_machine("h100").unwrap(), load_model("llama-3.1-8b").unwrap());
        let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
        let parallel = Parallel::tensor(1);
        let mut plan = plan(&model, &shape, &machine, model.weights, parallel).unwrap();
        let measured = of("h100", "llama-3.1-8b", 1);
        measure(&mut plan, &model, &machine, model.weights, &measured);
        assert!(plan.groups.iter().all(|group| group.measured.is_some() && group.measured_prefill.is_some()));
        assert!(plan.lines.as_ref().is_some_and(|lines| lines.layers.is_some() && lines.head.is_some()));
        // The host's time stays an assumption.
        assert_eq!(plan.certainty, Certainty::Assumed);
    }
}
