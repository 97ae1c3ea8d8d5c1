// What the kernels look at: arrays of a segment and of a query, owned by Python. docs/format.md gives the bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace coil {

constexpr int LANES = 16;           // mentions of a group
constexpr int BLOCK = 64;           // mentions of a list, or rows, that share one bound
constexpr int MOST_AXES = 16;            // main axes of sentence vectors that bounds look at, at most
constexpr int MOST_DIM = 1024;      // sums of products stay within 32 bits up to here
constexpr float QUERY_LEVELS = 16383.0f;  // codes of query vectors reach from - to + this
constexpr float GRID = 4294967296.0f;  // contributions are whole multiples of 2^-32, so that sums have no order

enum class Kind { int8, fp16, fp32 };

inline int bytes_of(Kind kind) { return kind == Kind::int8 ? 1 : kind == Kind::fp16 ? 2 : 4; }

// Vectors as they are stored: in groups of 16 (token lists) or one after another (sentences).
struct Vectors {
    const std::uint8_t *data = nullptr;
    const std::uint8_t *scales = nullptr;  // scale bytes of int8
    std::int64_t count = 0;
    int dim = 0;
    Kind kind = Kind::fp32;
};

// Sentence vectors along a segment's main axes, in int8, and the lengths of the vectors and of what the axes leave.
struct Sketches {
    const std::uint8_t *data = nullptr;  // [groups of sixteen rows, quads, 64]
    const std::uint8_t *scales = nullptr;
    const std::uint8_t *norms = nullptr, *tails = nullptr;  // in steps, rounded up
    const float *axes = nullptr;                            // [dim, n_c]
    float step = 0.0f;
    int dim = 0, quads = 0;  // a quad is four dimensions; 0 quads: there are no sketches
};

// A query's sentence vector along a segment's main axes.
struct SketchQuery {
    std::int8_t high[MOST_AXES] = {}, low[MOST_AXES] = {};
    std::int16_t codes[MOST_AXES] = {};
    float scale = 0.0f;
    std::int32_t code_sum = 0;
    float norm = 0.0f, sketch_norm = 0.0f, tail_norm = 0.0f;  // rounded up
    float slack = 0.0f;  // what a bound may be off, however it is rounded
};

// One vector of a query, in every form that a kernel may want.
struct QueryVector {
    int dim = 0;
    std::vector<float> exact;            // [dim padded to 16]
    std::vector<std::int16_t> codes;     // [dim padded to 64] 15-bit codes, exact ~ codes * scale
    std::vector<std::int8_t> high, low;  // [dim padded to 64] codes = high * 128 + low
    float scale = 0.0f;
    std::int32_t code_sum = 0;
    float norm = 0.0f;        // length of the longer of exact and codes * scale, rounded up
    float code_error = 0.0f;  // length of exact - codes * scale, rounded up
};

// A list's scan may be cut into parts; a row whose mentions lie on both sides of a cut is carried over. Its best
// is added to its score only when `flush` is called, or another row comes.
struct ScanState {
    std::int32_t row = -1;
    float best = 0.0f;
};

// One table of functions for each instruction set; all of them give the same bits.
struct Kernels {
    // Mentions [begin, end) of lists in groups: max of the products per row, added to scores[row - first_row].
    void (*scan)(const Vectors &, const std::uint16_t *rows, std::int64_t begin, std::int64_t end,
                 const QueryVector &, bool floor, std::int32_t first_row, std::int64_t *scores, ScanState &);
    void (*flush)(ScanState &, std::int32_t first_row, std::int64_t *scores);
    // Products of rows [begin, end), added to scores[row - begin].
    void (*add_rows)(const Vectors &, std::int64_t begin, std::int64_t end, const QueryVector &,
                     std::int64_t *scores);
    // Products of chosen rows, added to scores[row - first_row].
    void (*pick_rows)(const Vectors &, const std::int32_t *chosen, std::size_t count, const QueryVector &,
                      std::int32_t first_row, std::int64_t *scores);
    // Places of rows [begin, end), counted from `begin`, that may reach a threshold by their lengths and sketches, given
    // the scores[row - begin] of their lists; `places` has room for all of them.
    std::size_t (*find_open)(const Sketches &, std::int64_t begin, std::int64_t end, const SketchQuery &,
                             const std::int64_t *scores, float threshold, std::int32_t *places, std::int64_t *looked_at);
    // The highest of each block of BLOCK rows.
    void (*find_highest)(const std::int64_t *values, std::size_t count, std::int64_t *highest);
    // Places of scores that reach a threshold; `places` has room for all of them.
    std::size_t (*find_above)(const std::int64_t *scores, std::size_t count, std::int64_t threshold, std::int32_t *places);
};

extern float SCALES[256];  // the scale of each scale byte

const Kernels &portable_kernels();
#if defined(COIL_X86)
const Kernels &avx2_kernels();
const Kernels &avx512_kernels();
#endif

}  // namespace coil
