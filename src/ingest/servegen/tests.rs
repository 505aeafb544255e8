use crate::ingest::tests::Bench;
use crate::ingest::{ALL, Options, Sniff, inspect};

/// Lines as real client files begin.
const RATES: &str =
    "0,0,0,,0,0\n600,0,0,,0,0\n2400,0.085,6.69324386291654,Gamma,0.02232167101916883,73.01783087211976\n";
const LENGTHS: &str = "{\n  \"0\": {\n    \"input_tokens\": \"{45: 0.009666283084004603, 46: 0.011737629459148446}\",\n    \
                       \"output_tokens\": \"{}\"\n  }\n}\n";
const IMAGES: &str =
    "{\n  \"0\": {\n    \"text_tokens\": \"{136: 0.2557027673108869}\",\n    \"image_count\": \"{1: 1.0}\"\n  }\n}\n";

#[test]
fn client_files_are_recognised_and_refused() {
    let bench = Bench::new();
    for (text, missing) in [
        (RATES, "it holds no requests, so arrivals and lengths are missing"),
        (&RATES[26..], "it holds no requests, so arrivals and lengths are missing"),
        (LENGTHS, "it holds no requests, so arrivals are missing"),
        (IMAGES, "it holds no requests, so arrivals are missing"),
    ] {
        let path = bench.file("a", text);
        let found = inspect(&path).unwrap();
        assert_eq!(found.format, None);
        for ((name, verdict), format) in found.verdicts.iter().zip(ALL) {
            assert_eq!(*verdict != Sniff::No, format.name == "servegen", "{name}: {verdict:?}");
        }
        let error = bench.error(text).to_string();
        assert!(
            error.contains("\n  nearly servegen: a ServeGen client file of ") && error.contains(missing),
            "{error}"
        );
        let forced = Options { format: Some("servegen".to_owned()), ..Options::standard() };
        let error = bench.ingest(&[&path], &forced).unwrap_err();
        assert!(error.to_string().contains("found distributions"), "{error}");
    }
}

#[test]
fn other_files_are_not_taken_for_it() {
    for text in ["1,2,3,4,5,6\n", "0,0,0,,0\n", "{\"input_tokens\": 5}\n", "a,b\n"] {
        let bench = Bench::new();
        let found = inspect(&bench.file("a", text)).unwrap();
        let verdict = found.verdicts.iter().find(|(name, _)| *name == "servegen").unwrap();
        assert_eq!(verdict.1, Sniff::No, "{text}");
    }
}
