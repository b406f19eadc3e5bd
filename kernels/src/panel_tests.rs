use super::*;
use crate::cpu::detect::Isa;
use crate::cpu::matmul::pack;
use crate::cpu::pages::AlignedBytes;
use crate::test_data::random_rows;

/// Kernels pack to the bytes of the specification, over dirty memory, and touch no byte of another step.
#[test]
fn kernels_pack_as_the_specification() {
    for quant in Quant::ALL.map(Quant::panel) {
        let layout = quant.layout();
        let (steps, k) = (3, 3 * layout.step);
        let stride = quant.row_bytes(k);
        assert_eq!(stride, steps * layout.file_bytes, "{}", quant.name());
        let rows = random_rows(quant, LANES, k, 4);
        let mut want = vec![0; steps * layout.panel_bytes];
        for (step, panel) in want.chunks_exact_mut(layout.panel_bytes).enumerate() {
            layout.pack_step(&rows[step * layout.file_bytes..], stride, panel);
        }
        let mut back = vec![0xa5; rows.len()];
        layout.unpack_group(&want, &mut back, stride);
        assert!(back == rows, "{}", quant.name());
        for isa in Isa::available() {
            let mut found = AlignedBytes::zeroed(want.len());
            found.fill(0xa5);
            pack(isa, quant, &rows, stride, &mut found);
            assert!(want == found[..], "{} {isa:?}", quant.name());
        }
    }
}
