// The loops themselves, compiled once for each instruction set: the file that includes this one says which
// (COIL_ISA 0 portable, 2 AVX2, 5 AVX-512 VNNI). Whole-number sums are exact, and floating-point sums have one
// fixed order, so every instruction set gives the same bits. Compiled without contraction of a*b + c.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "views.hpp"
#if COIL_ISA > 0
#include <immintrin.h>
#endif

namespace coil {
namespace {

inline float half_to_float(std::uint16_t h) {
    const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
    float value;
    if (exponent == 0) {
        value = std::ldexp(static_cast<float>(fraction), -24);
        return sign ? -value : value;
    }
    const std::uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | (fraction << 13);
    std::memcpy(&value, &bits, 4);
    return value;
}

inline std::int64_t to_grid(float value) {
#if COIL_ISA > 0
    return _mm_cvtss_si64(_mm_set_ss(value * GRID));
#else
    return std::llrint(value * GRID);
#endif
}

// ---- one group of 16 mentions: its products

#if COIL_ISA == 5
inline __m512 scales_of(const std::uint8_t *codes) {
    const __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(codes)));
    const __m512 steps = _mm512_broadcast_f32x8(_mm256_loadu_ps(SCALES + 160));  // 2^(0/8) to 2^(7/8)
    const __m512i octave = _mm512_sub_epi32(_mm512_srli_epi32(c, 3), _mm512_set1_epi32(20));
    const __m512i bits = _mm512_castps_si512(_mm512_permutexvar_ps(_mm512_and_si512(c, _mm512_set1_epi32(7)), steps));
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_slli_epi32(octave, 23)));
}

struct Sixteen {  // products of a group
    __m512 values;
    inline void store(float *out) const { _mm512_storeu_ps(out, values); }
};
#else
struct Sixteen {
    alignas(32) float values[LANES];
    inline void store(float *out) const { std::memcpy(out, values, sizeof values); }
};
#endif

template <int CHUNKS>  // of four dimensions; 0: known only at run time
struct Int8Group {
#if COIL_ISA == 5
    __m512i high[CHUNKS ? CHUNKS : 1], low[CHUNKS ? CHUNKS : 1], shift;
    __m512 scale;
    explicit Int8Group(const QueryVector &q) {
        // Values are shifted by 128 to be unsigned; 32-bit sums wrap around and back again.
        shift = _mm512_set1_epi32(static_cast<std::int32_t>(128u * static_cast<std::uint32_t>(q.code_sum)));
        scale = _mm512_set1_ps(q.scale);
        for (int c = 0; c < CHUNKS; ++c) {
            std::int32_t h, l;
            std::memcpy(&h, q.high.data() + 4 * c, 4);
            std::memcpy(&l, q.low.data() + 4 * c, 4);
            high[c] = _mm512_set1_epi32(h);
            low[c] = _mm512_set1_epi32(l);
        }
    }
    inline Sixteen operator()(const std::uint8_t *group, const std::uint8_t *scales, int chunks,
                              const QueryVector &q) const {
        const __m512i sign = _mm512_set1_epi8(-128);
        __m512i sum_high = _mm512_setzero_si512(), sum_low = _mm512_setzero_si512();
        if constexpr (CHUNKS > 0) {
#pragma GCC unroll 32
            for (int c = 0; c < CHUNKS; ++c) {
                const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(group + 64 * c), sign);
                sum_high = _mm512_dpbusd_epi32(sum_high, v, high[c]);
                sum_low = _mm512_dpbusd_epi32(sum_low, v, low[c]);
            }
        } else {
            for (int c = 0; c < chunks; ++c) {
                std::int32_t h, l;
                std::memcpy(&h, q.high.data() + 4 * c, 4);
                std::memcpy(&l, q.low.data() + 4 * c, 4);
                const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(group + 64 * c), sign);
                sum_high = _mm512_dpbusd_epi32(sum_high, v, _mm512_set1_epi32(h));
                sum_low = _mm512_dpbusd_epi32(sum_low, v, _mm512_set1_epi32(l));
            }
        }
        const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(sum_high, 7), sum_low), shift);
        return {_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scales_of(scales), scale))};
    }
#else
    explicit Int8Group(const QueryVector &) {}
    inline Sixteen operator()(const std::uint8_t *group, const std::uint8_t *scales, int chunks,
                              const QueryVector &q) const {
        const int n = CHUNKS ? CHUNKS : chunks;
        alignas(32) std::int32_t sums[LANES];
#if COIL_ISA == 2
        __m256i part[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int c = 0; c < n; ++c) {
            std::int64_t four;
            std::memcpy(&four, q.codes.data() + 4 * c, 8);
            const __m256i codes = _mm256_set1_epi64x(four);
            for (int p = 0; p < 4; ++p) {  // four mentions at a time, their values widened to 16 bits
                const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(group + 64 * c + 16 * p));
                part[p] = _mm256_add_epi32(part[p], _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), codes));
            }
        }
        for (int p = 0; p < 2; ++p) {
            const __m256i pairs = _mm256_hadd_epi32(part[2 * p], part[2 * p + 1]);
            _mm256_store_si256(reinterpret_cast<__m256i *>(sums + 8 * p), _mm256_permute4x64_epi64(pairs, 0xd8));
        }
#else
        for (int lane = 0; lane < LANES; ++lane) sums[lane] = 0;
        for (int c = 0; c < n; ++c)
            for (int lane = 0; lane < LANES; ++lane)
                for (int d = 0; d < 4; ++d)
                    sums[lane] += static_cast<std::int32_t>(static_cast<std::int8_t>(group[64 * c + 4 * lane + d])) *
                                  q.codes[4 * c + d];
#endif
        Sixteen found;
        for (int lane = 0; lane < LANES; ++lane)
            found.values[lane] = static_cast<float>(sums[lane]) * (SCALES[scales[lane]] * q.scale);
        return found;
    }
#endif
};

// fp16 and fp32: each lane sums its dimensions one after another.
template <class Value>
inline Sixteen float_group(const std::uint8_t *group, int dim, const QueryVector &q) {
    const Value *values = reinterpret_cast<const Value *>(group);
#if COIL_ISA == 5
    __m512 sum = _mm512_setzero_ps();
    for (int d = 0; d < dim; ++d) {
        __m512 v;
        if constexpr (sizeof(Value) == 2)
            v = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(values + LANES * d)));
        else
            v = _mm512_loadu_ps(reinterpret_cast<const float *>(values + LANES * d));
        sum = _mm512_add_ps(sum, _mm512_mul_ps(v, _mm512_set1_ps(q.exact[d])));
    }
    return {sum};
#else
    Sixteen found;
    float *sums = found.values;
#if COIL_ISA == 2
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int d = 0; d < dim; ++d)
        for (int p = 0; p < 2; ++p) {
            __m256 v;
            if constexpr (sizeof(Value) == 2)
                v = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(values + LANES * d + 8 * p)));
            else
                v = _mm256_loadu_ps(reinterpret_cast<const float *>(values + LANES * d + 8 * p));
            sum[p] = _mm256_add_ps(sum[p], _mm256_mul_ps(v, _mm256_set1_ps(q.exact[d])));
        }
    _mm256_store_ps(sums, sum[0]);
    _mm256_store_ps(sums + 8, sum[1]);
#else
    for (int lane = 0; lane < LANES; ++lane) sums[lane] = 0.0f;
    for (int d = 0; d < dim; ++d)
        for (int lane = 0; lane < LANES; ++lane) {
            float v;
            if constexpr (sizeof(Value) == 2)
                v = half_to_float(values[LANES * d + lane]);
            else
                v = values[LANES * d + lane];
            sums[lane] += v * q.exact[d];
        }
#endif
    return found;
#endif
}

// ---- a list

// The last group may have fewer lanes, and the last chunk of int8 fewer dimensions: copied into a full one.
inline const std::uint8_t *whole_group(const Vectors &lists, std::int64_t group, std::uint8_t *copy) {
    const int size = bytes_of(lists.kind), width = lists.kind == Kind::int8 ? 4 : 1;
    const std::uint8_t *base = lists.data + group * LANES * lists.dim * size;
    const int lanes = static_cast<int>(std::min<std::int64_t>(LANES, lists.count - group * LANES));
    if (lanes == LANES && lists.dim % width == 0) return base;
    std::memset(copy, 0, static_cast<std::size_t>((lists.dim + width - 1) / width * width) * LANES * size);
    for (int begin = 0; begin < lists.dim; begin += width) {
        const int here = std::min(width, lists.dim - begin);
        for (int lane = 0; lane < lanes; ++lane)
            std::memcpy(copy + (begin * LANES + lane * width) * size, base + (begin * lanes + lane * here) * size,
                        static_cast<std::size_t>(here) * size);
    }
    return copy;
}

// Rows of a list ascend, so the mentions of a row stand side by side. The best of the last row seen stays in the
// state until another row comes.
inline void flush(ScanState &state, std::int32_t first_row, std::int64_t *scores) {
    if (state.row >= 0) scores[state.row - first_row] += to_grid(state.best);
    state = ScanState{};
}

inline void add_lanes(const float *found, const std::uint16_t *rows, int from, int to, bool floor, std::int32_t first_row,
                      std::int64_t *scores, ScanState &state) {
    for (int lane = from; lane < to; ++lane) {
        const float value = floor ? std::max(found[lane], 0.0f) : found[lane];
        if (rows[lane] == state.row) {
            state.best = std::max(state.best, value);
        } else {
            flush(state, first_row, scores);
            state.row = rows[lane];
            state.best = value;
        }
    }
}

#if COIL_ISA == 5
// A whole group without branches: the best of each row moves to the row's last lane, the other lanes add nothing.
inline void add_group(__m512 found, const std::uint16_t *rows, bool floor, std::int32_t first_row, std::int64_t *scores,
                      __m512i &last_row, __m512 &last_best) {
    const __m512i row = _mm512_sub_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(rows))), _mm512_set1_epi32(first_row));
    if (floor) found = _mm512_max_ps(found, _mm512_setzero_ps());
    // Lane i takes from lane i - 1, then i - 2, ... as long as that is the same row; rows are never -1.
    const __m512i none = _mm512_set1_epi32(-1);
#define COIL_TAKE(distance)                                                                                       \
    {                                                                                                             \
        const __mmask16 same = _mm512_cmpeq_epi32_mask(row, _mm512_alignr_epi32(row, none, 16 - distance));       \
        const __m512i moved = _mm512_alignr_epi32(_mm512_castps_si512(found), none, 16 - distance);               \
        found = _mm512_mask_max_ps(found, same, found, _mm512_castsi512_ps(moved));                               \
    }
    COIL_TAKE(1)
    COIL_TAKE(2)
    if (__builtin_expect(_mm512_cmpeq_epi32_mask(row, _mm512_alignr_epi32(row, none, 12)) != 0, 0)) {
        COIL_TAKE(4)
        COIL_TAKE(8)
    }
#undef COIL_TAKE
    const __mmask16 goes_on = _mm512_cmpeq_epi32_mask(row, last_row);
    found = _mm512_mask_max_ps(found, goes_on, found, last_best);
    // The row that was waiting is done, unless this group goes on with it.
    const std::int64_t waiting = to_grid(_mm512_cvtss_f32(last_best));
    scores[_mm512_cvtsi512_si32(last_row)] += waiting & (static_cast<std::int64_t>(goes_on & 1) - 1);
    const __mmask16 last = _mm512_cmpneq_epi32_mask(row, _mm512_alignr_epi32(row, row, 1)) & 0x7fff;
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_mov_ps(last, found), _mm512_set1_ps(GRID));
    alignas(64) std::int64_t values[LANES];
    _mm512_store_si512(values, _mm512_cvtps_epi64(_mm512_castps512_ps256(scaled)));
    _mm512_store_si512(values + 8, _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1)));
    asm volatile("" ::: "memory");  // read back from memory: taking registers apart is slower
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES - 1; ++lane) scores[rows[lane] - first_row] += values[lane];
    const __m512i end = _mm512_set1_epi32(15);
    last_row = _mm512_permutexvar_epi32(end, row);
    last_best = _mm512_permutexvar_ps(end, found);
}
#endif

template <class Products>
inline void scan_groups(const Vectors &lists, const std::uint16_t *rows, std::int64_t begin, std::int64_t end, bool floor,
                        std::int32_t first_row, std::int64_t *scores, ScanState &state, Products products) {
    alignas(64) std::uint8_t copy[MOST_DIM * LANES * 4];
    alignas(64) float found[LANES];
    std::uint8_t scales[LANES] = {};
    const auto part = [&](std::int64_t group) {  // a group of which not every lane belongs to the list
        const std::int64_t start = group * LANES;
        const std::uint8_t *scale = lists.scales == nullptr ? nullptr : lists.scales + start;
        if (scale != nullptr && lists.count - start < LANES) {
            std::memcpy(scales, scale, static_cast<std::size_t>(lists.count - start));
            scale = scales;
        }
        products(whole_group(lists, group, copy), scale).store(found);
        const int from = static_cast<int>(std::max<std::int64_t>(begin - start, 0));
        const int to = static_cast<int>(std::min<std::int64_t>(end - start, LANES));
        add_lanes(found, rows + start, from, to, floor, first_row, scores, state);
    };
    std::int64_t group = begin / LANES;
    const std::int64_t stop = end / LANES;  // groups before this one end within the list
    if (begin % LANES != 0 || group == stop) part(group++);
#if COIL_ISA == 5
    if (group < stop) {
        const std::int64_t bytes = static_cast<std::int64_t>(LANES) * lists.dim * bytes_of(lists.kind);
        const bool even = lists.dim % (lists.kind == Kind::int8 ? 4 : 1) == 0;
        if (state.row < 0) {  // something that adds nothing to a row that is there
            state.row = rows[group * LANES];
            state.best = floor ? 0.0f : -std::numeric_limits<float>::infinity();
        }
        __m512i last_row = _mm512_set1_epi32(state.row - first_row);
        __m512 last_best = _mm512_set1_ps(state.best);
        for (; group < stop; ++group) {
            const std::uint8_t *ahead = lists.data + (group + 6) * bytes;
            for (std::int64_t at = 0; at < bytes && at < 1024; at += 64) __builtin_prefetch(ahead + at);
            const std::uint8_t *scale = lists.scales == nullptr ? nullptr : lists.scales + group * LANES;
            const std::uint8_t *data = even ? lists.data + group * bytes : whole_group(lists, group, copy);
            add_group(products(data, scale).values, rows + group * LANES, floor, first_row, scores, last_row, last_best);
        }
        state.row = _mm512_cvtsi512_si32(last_row) + first_row;
        state.best = _mm512_cvtss_f32(last_best);
    }
#else
    for (; group < stop; ++group) part(group);
#endif
    if (group * LANES < end) part(group);
}

void scan(const Vectors &lists, const std::uint16_t *rows, std::int64_t begin, std::int64_t end, const QueryVector &q,
          bool floor, std::int32_t first_row, std::int64_t *scores, ScanState &state) {
    if (begin >= end) return;
    if (lists.kind == Kind::fp32) {
        scan_groups(lists, rows, begin, end, floor, first_row, scores, state,
                    [&](const std::uint8_t *group, const std::uint8_t *) { return float_group<float>(group, lists.dim, q); });
    } else if (lists.kind == Kind::fp16) {
        scan_groups(lists, rows, begin, end, floor, first_row, scores, state,
                    [&](const std::uint8_t *group, const std::uint8_t *) { return float_group<std::uint16_t>(group, lists.dim, q); });
    } else {
        const int chunks = (lists.dim + 3) / 4;
        const auto run = [&](const auto &kernel) {
            scan_groups(lists, rows, begin, end, floor, first_row, scores, state,
                        [&](const std::uint8_t *group, const std::uint8_t *scales) { return kernel(group, scales, chunks, q); });
        };
        if (chunks == 8)
            run(Int8Group<8>(q));
        else if (chunks == 2)
            run(Int8Group<2>(q));
        else
            run(Int8Group<0>(q));
    }
}

// ---- rows one after another: sentence vectors

inline float scaled(std::int32_t sum, const Vectors &rows, std::int64_t row, const QueryVector &q) {
    return static_cast<float>(sum) * (SCALES[rows.scales[row]] * q.scale);
}

inline std::int32_t int8_row(const std::int8_t *values, int dim, const QueryVector &q) {
#if COIL_ISA == 5
    const __m512i sign = _mm512_set1_epi8(-128);
    __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
    for (int d = 0; d < dim; d += 64) {
        const int left = dim - d;
        const __mmask64 mask = left >= 64 ? ~0ull : (1ull << left) - 1;
        const __m512i v = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, values + d), sign);
        high = _mm512_dpbusd_epi32(high, v, _mm512_loadu_si512(q.high.data() + d));
        low = _mm512_dpbusd_epi32(low, v, _mm512_loadu_si512(q.low.data() + d));
    }
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(_mm512_reduce_add_epi32(sum)) -
                                     128u * static_cast<std::uint32_t>(q.code_sum));
#else
    std::int32_t sum = 0;
    int d = 0;
#if COIL_ISA == 2
    __m256i parts = _mm256_setzero_si256();
    for (; d + 16 <= dim; d += 16) {
        const __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(values + d)));
        const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(q.codes.data() + d));
        parts = _mm256_add_epi32(parts, _mm256_madd_epi16(v, c));
    }
    alignas(32) std::int32_t eight[8];
    _mm256_store_si256(reinterpret_cast<__m256i *>(eight), parts);
    for (const std::int32_t part : eight) sum += part;
#endif
    for (; d < dim; ++d) sum += static_cast<std::int32_t>(values[d]) * q.codes[d];
    return sum;
#endif
}

// Sixteen partial sums, then halves added to halves.
template <class Value>
inline float float_row(const Value *values, int dim, const QueryVector &q) {
    alignas(64) float sums[16] = {};
    for (int d = 0; d < dim; d += 16) {
        const int here = std::min(16, dim - d);
        for (int j = 0; j < here; ++j) {
            float v;
            if constexpr (sizeof(Value) == 2) {
#if COIL_ISA > 0
                v = _cvtsh_ss(values[d + j]);
#else
                v = half_to_float(values[d + j]);
#endif
            } else {
                v = values[d + j];
            }
            sums[j] += v * q.exact[d + j];
        }
    }
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

inline float one_row(const Vectors &rows, std::int64_t row, const QueryVector &q) {
    if (rows.kind == Kind::int8)
        return scaled(int8_row(reinterpret_cast<const std::int8_t *>(rows.data) + row * rows.dim, rows.dim, q), rows, row, q);
    if (rows.kind == Kind::fp16)
        return float_row(reinterpret_cast<const std::uint16_t *>(rows.data) + row * rows.dim, rows.dim, q);
    return float_row(reinterpret_cast<const float *>(rows.data) + row * rows.dim, rows.dim, q);
}

#if COIL_ISA == 5
// Four registers of partial sums, each summed up: the steps are shared.
inline __m128i sum_four(const __m512i sums[4]) {
    const __m512i x = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[0], sums[1]), _mm512_unpackhi_epi32(sums[0], sums[1]));
    const __m512i y = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[2], sums[3]), _mm512_unpackhi_epi32(sums[2], sums[3]));
    const __m512i z = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    const __m256i w = _mm256_add_epi32(_mm512_castsi512_si256(z), _mm512_extracti64x4_epi64(z, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

// Products of 128 unsigned bytes a + b, with the query.
inline __m512i products_128(__m512i a, __m512i b, const QueryVector &q) {
    __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), a, _mm512_loadu_si512(q.high.data()));
    __m512i low = _mm512_dpbusd_epi32(_mm512_setzero_si512(), a, _mm512_loadu_si512(q.low.data()));
    high = _mm512_dpbusd_epi32(high, b, _mm512_loadu_si512(q.high.data() + 64));
    low = _mm512_dpbusd_epi32(low, b, _mm512_loadu_si512(q.low.data() + 64));
    return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
}

// Four rows of 128 int8, wherever they are.
inline void four_rows_128(const Vectors &rows, const std::int32_t *chosen, const QueryVector &q, std::int64_t *out) {
    const __m512i sign = _mm512_set1_epi8(-128);
    __m512i sums[4];
    for (int r = 0; r < 4; ++r) {
        const std::uint8_t *row = rows.data + 128 * static_cast<std::int64_t>(chosen[r]);
        sums[r] = products_128(_mm512_xor_si512(_mm512_loadu_si512(row), sign),
                               _mm512_xor_si512(_mm512_loadu_si512(row + 64), sign), q);
    }
    const __m128i shift = _mm_set1_epi32(static_cast<std::int32_t>(128u * static_cast<std::uint32_t>(q.code_sum)));
    alignas(16) std::int32_t whole[4];
    _mm_store_si128(reinterpret_cast<__m128i *>(whole), _mm_sub_epi32(sum_four(sums), shift));
    for (int r = 0; r < 4; ++r) out[r] = to_grid(scaled(whole[r], rows, chosen[r], q));
}
#endif

void add_rows(const Vectors &rows, std::int64_t begin, std::int64_t end, const QueryVector &q, std::int64_t *scores) {
    std::int64_t row = begin;
#if COIL_ISA == 5
    if (rows.kind == Kind::int8 && rows.dim == 128) {
        for (; row + 4 <= end; row += 4) {
            for (int line = 0; line < 8; ++line) __builtin_prefetch(rows.data + 128 * (row + 16) + 64 * line);
            const std::int32_t at = static_cast<std::int32_t>(row), four[4] = {at, at + 1, at + 2, at + 3};
            std::int64_t found[4];
            four_rows_128(rows, four, q, found);
            for (int r = 0; r < 4; ++r) scores[row - begin + r] += found[r];
        }
    }
#endif
    for (; row < end; ++row) scores[row - begin] += to_grid(one_row(rows, row, q));
}

void pick_rows(const Vectors &rows, const std::int32_t *chosen, std::size_t count, const QueryVector &q,
               std::int32_t first_row, std::int64_t *scores) {
    const std::int64_t bytes = static_cast<std::int64_t>(rows.dim) * bytes_of(rows.kind);
    std::size_t i = 0;
#if COIL_ISA == 5
    if (rows.kind == Kind::int8 && rows.dim == 128) {
        for (; i + 4 <= count; i += 4) {
            for (std::size_t r = i + 12; r < std::min(i + 16, count); ++r) {
                __builtin_prefetch(rows.data + 128 * static_cast<std::int64_t>(chosen[r]));
                __builtin_prefetch(rows.data + 128 * static_cast<std::int64_t>(chosen[r]) + 64);
            }
            std::int64_t found[4];
            four_rows_128(rows, chosen + i, q, found);
            for (int r = 0; r < 4; ++r) scores[chosen[i + static_cast<std::size_t>(r)] - first_row] += found[r];
        }
    }
#endif
    for (; i < count; ++i) {
        if (i + 8 < count) {
            const std::uint8_t *ahead = rows.data + chosen[i + 8] * bytes;
            for (std::int64_t at = 0; at < bytes && at < 512; at += 64) __builtin_prefetch(ahead + at);
        }
        scores[chosen[i] - first_row] += to_grid(one_row(rows, chosen[i], q));
    }
}

// What each row can score at most: its list score, the product of the heads (the first dimensions), and the product
// of the lengths of the tails. Heads stand in groups of sixteen rows as mentions do, the last one filled up.
void bound_rows(const Heads &heads, std::int64_t begin, std::int64_t end, const QueryVector &q, const std::int64_t *scores,
                std::int64_t needed, float length, float *most, std::int64_t *looked_at) {
    const float none = -std::numeric_limits<float>::infinity();
    const float slack = (q.norm * 2e-4f + q.code_error) * length;  // products are rounded, and so is the query
    const float off = q.head_norm * 2.0f;  // sixteen roundings of half a step each are at most two steps long
    for (std::int64_t group = begin / LANES; group * LANES < end; ++group) {
        const std::int64_t start = group * LANES, from = std::max(start, begin), to = std::min(start + LANES, end);
        const std::uint8_t *data = heads.data + group * 64 * heads.chunks;
#if COIL_ISA == 5
        if (to - from == LANES) {
            const std::int64_t *sixteen = scores + (from - begin);
            const __m512i least = _mm512_set1_epi64(needed), first = _mm512_loadu_si512(sixteen), second = _mm512_loadu_si512(sixteen + 8);
            const unsigned open = _mm512_cmpge_epi64_mask(first, least) | static_cast<unsigned>(_mm512_cmpge_epi64_mask(second, least)) << 8;
            if (!open) {
                _mm512_storeu_ps(most + (from - begin), _mm512_set1_ps(none));
                continue;
            }
            *looked_at += LANES;
            const __m512i sign = _mm512_set1_epi8(-128);
            __m512i high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
            for (int c = 0; c < heads.chunks; ++c) {
                __builtin_prefetch(data + 4 * 64 * heads.chunks + 64 * c);
                std::int32_t h, l;
                std::memcpy(&h, q.high.data() + 4 * c, 4);
                std::memcpy(&l, q.low.data() + 4 * c, 4);
                const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(data + 64 * c), sign);
                high = _mm512_dpbusd_epi32(high, v, _mm512_set1_epi32(h));
                low = _mm512_dpbusd_epi32(low, v, _mm512_set1_epi32(l));
            }
            const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low), _mm512_set1_epi32(128 * q.head_sum));
            const __m512 scale = scales_of(heads.scales + from);
            const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(q.scale)));
            const __m512 error = _mm512_add_ps(_mm512_mul_ps(scale, _mm512_set1_ps(off)), _mm512_set1_ps(slack));
            const __m512 tail = _mm512_mul_ps(_mm512_loadu_ps(heads.tails + from), _mm512_set1_ps(q.tail_norm));
            const __m512 score = _mm512_mul_ps(_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(first)), _mm512_cvtepi64_ps(second), 1),
                                               _mm512_set1_ps(1.0f / GRID));
            const __m512 room = _mm512_mul_ps(_mm512_add_ps(_mm512_abs_ps(score), _mm512_abs_ps(product)), _mm512_set1_ps(1e-6f));
            const __m512 whole = _mm512_add_ps(_mm512_add_ps(score, product), _mm512_add_ps(_mm512_add_ps(error, room), tail));
            _mm512_storeu_ps(most + (from - begin), _mm512_mask_mov_ps(_mm512_set1_ps(none), static_cast<__mmask16>(open), whole));
            continue;
        }
#endif
        for (std::int64_t row = from; row < to; ++row) {
            if (scores[row - begin] < needed) {
                most[row - begin] = none;
                continue;
            }
            ++*looked_at;
            std::int32_t sum = 0;
            for (int c = 0; c < heads.chunks; ++c)
                for (int d = 0; d < 4; ++d)
                    sum += static_cast<std::int32_t>(static_cast<std::int8_t>(data[64 * c + 4 * (row - start) + d])) *
                           q.codes[static_cast<std::size_t>(4 * c + d)];
            const float product = static_cast<float>(sum) * (SCALES[heads.scales[row]] * q.scale);
            const float score = static_cast<float>(scores[row - begin]) * (1.0f / GRID);
            const float error = SCALES[heads.scales[row]] * off + slack;
            most[row - begin] = score + product + error + (std::abs(score) + std::abs(product)) * 1e-6f + heads.tails[row] * q.tail_norm;
        }
    }
}

// The highest of each block of rows.
void find_highest(const std::int64_t *values, std::size_t count, std::int64_t *highest) {
    for (std::size_t block = 0; block * BLOCK < count; ++block) {
        const std::size_t begin = block * BLOCK, end = std::min(begin + BLOCK, count);
        std::int64_t best[8];
        for (int j = 0; j < 8; ++j) best[j] = values[begin];
        std::size_t i = begin;
        for (; i + 8 <= end; i += 8)
            for (std::size_t j = 0; j < 8; ++j) best[j] = values[i + j] > best[j] ? values[i + j] : best[j];
        for (; i < end; ++i) best[0] = values[i] > best[0] ? values[i] : best[0];
        for (int j = 1; j < 8; ++j) best[0] = best[j] > best[0] ? best[j] : best[0];
        highest[block] = best[0];
    }
}

// Places of bounds that reach a threshold.
std::size_t find_reaching(const float *values, std::size_t count, float threshold, std::int32_t *places) {
    std::size_t found = 0, i = 0;
#if COIL_ISA == 5
    const __m512 bound = _mm512_set1_ps(threshold);
    for (; i + 16 <= count; i += 16)
        for (unsigned mask = _mm512_cmp_ps_mask(_mm512_loadu_ps(values + i), bound, _CMP_GE_OQ); mask; mask &= mask - 1)
            places[found++] = static_cast<std::int32_t>(i) + __builtin_ctz(mask);
#endif
    for (; i < count; ++i) {
        places[found] = static_cast<std::int32_t>(i);
        found += values[i] >= threshold;
    }
    return found;
}

// Places of scores that reach a threshold.
std::size_t find_above(const std::int64_t *scores, std::size_t count, std::int64_t threshold, std::int32_t *places) {
    std::size_t found = 0, i = 0;
#if COIL_ISA == 5
    const __m512i bound = _mm512_set1_epi64(threshold);
    for (; i + 16 <= count; i += 16) {
        const unsigned low = _mm512_cmpge_epi64_mask(_mm512_loadu_si512(scores + i), bound);
        const unsigned high = _mm512_cmpge_epi64_mask(_mm512_loadu_si512(scores + i + 8), bound);
        for (unsigned mask = low | high << 8; mask; mask &= mask - 1)
            places[found++] = static_cast<std::int32_t>(i) + __builtin_ctz(mask);
    }
#endif
    for (; i < count; ++i) {
        places[found] = static_cast<std::int32_t>(i);
        found += scores[i] >= threshold;
    }
    return found;
}

}  // namespace
}  // namespace coil
