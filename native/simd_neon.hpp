// Sixteen floats at a time in four registers, with the NEON instructions that every 64-bit ARM processor has.
// simd_portable.hpp documents the functions.
#pragma once
#include <arm_neon.h>

#include "simd_portable.hpp"

namespace coil {
namespace {

struct Neon : Portable {
    struct Floats {
        float32x4_t part[4];
    };

    template <class Make>
    static Floats made(Make make) {
        return {{make(0), make(1), make(2), make(3)}};
    }
    static Floats spread(float value) {
        return made([&](int) { return vdupq_n_f32(value); });
    }
    static Floats load(const float *at) {
        return made([&](int p) { return vld1q_f32(at + 4 * p); });
    }
    static Floats load(const std::uint16_t *halves) {
        return made([&](int p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + 4 * p))); });
    }
    static void store(float *to, const Floats &a) {
        for (int p = 0; p < 4; ++p) vst1q_f32(to + 4 * p, a.part[p]);
    }
    static Floats add(const Floats &a, const Floats &b) {
        return made([&](int p) { return vaddq_f32(a.part[p], b.part[p]); });
    }
    static Floats multiply(const Floats &a, const Floats &b) {
        return made([&](int p) { return vmulq_f32(a.part[p], b.part[p]); });
    }
    static Floats larger(const Floats &a, const Floats &b) {
        return made([&](int p) { return vbslq_f32(vcgtq_f32(a.part[p], b.part[p]), a.part[p], b.part[p]); });
    }
    static float largest(const Floats &a) {
        return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.part[0], a.part[1]), vmaxq_f32(a.part[2], a.part[3])));
    }
    static Floats only(unsigned mask, const Floats &a, float other) {
        static const std::uint32_t BITS[4] = {1, 2, 4, 8};
        return made([&](int p) {
            const uint32x4_t kept = vtstq_u32(vdupq_n_u32(mask >> (4 * p)), vld1q_u32(BITS));
            return vbslq_f32(kept, a.part[p], vdupq_n_f32(other));
        });
    }

    template <int QUADS>
    struct Int8Group {
        const QueryVector &q;
        int quads;
        Int8Group(const QueryVector &vector, int n) : q(vector), quads(QUADS ? QUADS : n) {}
        Floats operator()(const std::uint8_t *group, const std::uint8_t *scales) const {
            int32x4_t sums[LANES];  // per mention, one for each dimension of a quad
            for (int i = 0; i < LANES; ++i) sums[i] = vdupq_n_s32(0);
            for (int c = 0; c < quads; ++c) {
                const int16x4_t codes = vld1_s16(q.codes.data() + 4 * c);
                for (int p = 0; p < 4; ++p) {  // four mentions at a time, their values widened to 16 bits
                    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(group + 64 * c + 16 * p));
                    const int16x8_t first = vmovl_s8(vget_low_s8(bytes)), second = vmovl_s8(vget_high_s8(bytes));
                    sums[4 * p] = vmlal_s16(sums[4 * p], vget_low_s16(first), codes);
                    sums[4 * p + 1] = vmlal_s16(sums[4 * p + 1], vget_high_s16(first), codes);
                    sums[4 * p + 2] = vmlal_s16(sums[4 * p + 2], vget_low_s16(second), codes);
                    sums[4 * p + 3] = vmlal_s16(sums[4 * p + 3], vget_high_s16(second), codes);
                }
            }
            std::int32_t whole[LANES];
            for (int p = 0; p < 4; ++p) {
                const int32x4_t *of = sums + 4 * p;
                vst1q_s32(whole + 4 * p, vpaddq_s32(vpaddq_s32(of[0], of[1]), vpaddq_s32(of[2], of[3])));
            }
            return scaled(whole, scales, q.scale);
        }
    };

    template <int LINES>
    static void int8_rows(const std::uint8_t *const rows[4], int dim, const QueryVector &q, std::int32_t *sums) {
        for (int r = 0; r < 4; ++r) {
            int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);
            int d = 0;
            for (; d + 16 <= dim; d += 16) {
                const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(rows[r] + d));
                const int16x8_t first = vmovl_s8(vget_low_s8(bytes)), second = vmovl_s8(vget_high_s8(bytes));
                const int16x8_t a = vld1q_s16(q.codes.data() + d), b = vld1q_s16(q.codes.data() + d + 8);
                low = vmlal_s16(vmlal_s16(low, vget_low_s16(first), vget_low_s16(a)), vget_low_s16(second), vget_low_s16(b));
                high = vmlal_high_s16(vmlal_high_s16(high, first, a), second, b);
            }
            std::int32_t sum = vaddvq_s32(vaddq_s32(low, high));
            for (; d < dim; ++d) sum += static_cast<std::int32_t>(static_cast<std::int8_t>(rows[r][d])) * q.codes[d];
            sums[r] = sum;
        }
    }

    static void end_runs(const Floats &found, unsigned starts, Carry &carry, float *out) {
        Portable::Floats lanes;
        store(lanes.lane, found);
        Portable::end_runs(lanes, starts, carry, out);
    }

    static Floats factors(const std::uint32_t *ends, const std::uint16_t *rows, const std::uint32_t *lengths, float c0, float c1) {
        return made([&](int p) {
            const std::uint16_t *at = rows + 4 * p;
            const std::uint32_t four[4] = {lengths[at[0]], lengths[at[1]], lengths[at[2]], lengths[at[3]]};
            const int32x4_t length = vreinterpretq_s32_u32(vld1q_u32(four));
            const uint32x4_t end = vld1q_u32(ends + 4 * p), before = vld1q_u32(ends + 4 * p - 1);
            const float32x4_t tf = vcvtq_f32_s32(vreinterpretq_s32_u32(vsubq_u32(end, before)));
            const float32x4_t k = vaddq_f32(vdupq_n_f32(c0), vmulq_f32(vdupq_n_f32(c1), vcvtq_f32_s32(length)));
            return vdivq_f32(tf, vaddq_f32(tf, k));
        });
    }

    static std::int64_t to_grid(float value) { return vcvtnd_s64_f64(static_cast<double>(value * GRID)); }
    static void to_grid(const Floats &a, std::int64_t *out) {
        for (int p = 0; p < 4; ++p) {
            const float32x4_t scaled = vmulq_f32(a.part[p], vdupq_n_f32(GRID));
            vst1q_s64(out + 4 * p, vcvtnq_s64_f64(vcvt_f64_f32(vget_low_f32(scaled))));
            vst1q_s64(out + 4 * p + 2, vcvtnq_s64_f64(vcvt_high_f64_f32(scaled)));
        }
    }

    static Floats scaled(const std::int32_t *sums, const std::uint8_t *scales, float scale) {
        return made([&](int p) {
            const std::uint8_t *at = scales + 4 * p;
            const float four[4] = {SCALES[at[0]], SCALES[at[1]], SCALES[at[2]], SCALES[at[3]]};
            return vmulq_f32(vcvtq_f32_s32(vld1q_s32(sums + 4 * p)), vmulq_f32(vld1q_f32(four), vdupq_n_f32(scale)));
        });
    }
    // An int64 must be rounded only once, so it is not converted to a float through a double.
    static Floats from_grid(const std::int64_t *scores) { return load(Portable::from_grid(scores).lane); }
    static Floats bytes(const std::uint8_t *at) {
        const uint8x16_t all = vld1q_u8(at);
        const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_u8(vget_high_u8(all));
        return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
                 vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))}};
    }
    static Floats size(const Floats &a) {
        return made([&](int p) { return vabsq_f32(a.part[p]); });
    }
    static unsigned reach(const Floats &a, float threshold) {
        static const std::uint32_t BITS[4] = {1, 2, 4, 8};
        unsigned mask = 0;
        for (int p = 0; p < 4; ++p)
            mask |= vaddvq_u32(vandq_u32(vcgeq_f32(a.part[p], vdupq_n_f32(threshold)), vld1q_u32(BITS))) << (4 * p);
        return mask;
    }

    static unsigned reach(const std::int64_t *scores, std::int64_t threshold) {
        static const std::uint64_t BITS[2] = {1, 2};
        unsigned mask = 0;
        for (int i = 0; i < LANES; i += 2) {
            const uint64x2_t reached = vcgeq_s64(vld1q_s64(scores + i), vdupq_n_s64(threshold));
            mask |= static_cast<unsigned>(vaddvq_u64(vandq_u64(reached, vld1q_u64(BITS)))) << i;
        }
        return mask;
    }

    static int count_below(const std::uint16_t *rows, std::int32_t row) {
        if (row > 0xffff) return 32;
        uint16x8_t count = vdupq_n_u16(0);
        const uint16x8_t bound = vdupq_n_u16(static_cast<std::uint16_t>(row < 0 ? 0 : row));
        for (int i = 0; i < 32; i += 8) count = vsubq_u16(count, vcltq_u16(vld1q_u16(rows + i), bound));
        return vaddvq_u16(count);
    }
};

}  // namespace
}  // namespace coil
