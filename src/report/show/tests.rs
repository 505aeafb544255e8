use super::*;

#[test]
fn the_longest_suffix_of_a_name_is_its_unit() {
    for (column, expected) in [
        ("bytes_per_s", "bytes/s"),
        ("peak_bytes_per_s", "bytes/s"),
        ("output_tokens_per_s", "tokens/s"),
        ("output_tokens_per_s_per_accelerator", "tokens/s"),
        ("start_s", "s"),
        ("kv_bytes_per_token", "bytes"),
        ("kv_read_bytes_per_output_token", "bytes"),
        ("bytes", "bytes"),
        ("file_bytes", "bytes"),
        ("p99_ttft_ms", "ms"),
        ("ns_per_output_token", "ns"),
        ("p99_ttft_change_ratio", "change"),
        ("offered_load_ratio", "ratio"),
        ("usd_per_mtok_output_saturated", "USD/Mtok"),
        ("usd_per_accelerator_hour", "USD"),
        ("hit_tokens", "count"),
        ("energy_j_per_output_token", "J"),
        // Words that only end in the letters of a unit.
        ("steps", ""),
        ("requests", ""),
        ("accelerators", ""),
    ] {
        assert_eq!(unit(column), expected, "{column}");
    }
}

#[test]
fn a_change_beyond_a_hundredth_is_a_factor() {
    // 118 s to 169 ms.
    assert_eq!(change(0.169 / 118.0 - 1.0), "698 times less");
    assert_eq!(change(-0.99), "\u{2212}99%");
    assert_eq!(change(-1.0), "\u{2212}100%");
    assert_eq!(change(-0.25), "\u{2212}25%");
    assert_eq!(change(0.0123), "+1.2%");
    assert_eq!(change(0.0001), "±0%");
    assert_eq!(change(11.3), "12.3×");
}

#[test]
fn a_difference_has_its_sign_before_everything() {
    for (value, unit, expected) in [
        (-3.2, "signed_usd", "\u{2212}$3.20"),
        (3.2, "signed_usd", "+$3.20"),
        (0.0, "signed_j", "0 J"),
        (-1500.0, "signed_ns", "\u{2212}1.5 µs"),
        (-0.25, "USD", "\u{2212}$0.250"),
        (2.75, "times", "2.75×"),
    ] {
        assert_eq!(figure(value, unit), expected, "{value} {unit}");
    }
}
