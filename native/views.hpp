// The data that the kernels read: arrays of a segment and of a query, owned by Python. docs/format.md specifies the bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace coil {

constexpr int LANES = 16;                 // mentions of a group
constexpr int BLOCK = 64;                 // postings of a long list that share one bound
constexpr int BLOCK_KEYS = 16;            // keys of a block of the dictionary
constexpr int LONGEST_KEY = 96;           // bytes
constexpr int HEAD = 64;                  // first dimensions of a sentence vector
constexpr int MOST_DIM = 1024;            // with more dimensions, sums of products would not fit into 32 bits
constexpr float QUERY_LEVELS = 16383.0f;  // codes of query vectors are from minus this to plus this
constexpr float GRID = 4294967296.0f;     // parts are multiples of 2^-32, so that sums do not depend on the order

enum class Kind { int8, fp16, fp32 };

inline int bytes_of(Kind kind) { return kind == Kind::int8 ? 1 : kind == Kind::fp16 ? 2 : 4; }

// Vectors as they are stored: in groups of 16 (token lists) or consecutive (sentences).
struct Vectors {
    const std::uint8_t *data = nullptr;
    const std::uint8_t *scales = nullptr;  // scale bytes of int8
    std::int64_t count = 0;
    int dim = 0;
    Kind kind = Kind::fp32;
};

// The dictionary: the keys of the lists, front-coded in blocks.
struct Keys {
    const std::uint8_t *data = nullptr;
    const std::uint32_t *blocks = nullptr;  // [blocks + 1] the start of each block, and the end of `data`
    std::int64_t count = 0;
};

struct SegmentView {
    Keys keys;
    std::int64_t lists = 0;
    const std::uint32_t *list_offsets = nullptr;     // [lists + 1] into mentions
    const std::uint32_t *posting_offsets = nullptr;  // [lists + 1] into posting_rows
    const std::uint16_t *posting_rows = nullptr;     // [postings]
    const std::uint64_t *posting_starts = nullptr;   // a bit per mention: whether a posting begins there
    Vectors mentions;                                // in groups of 16
    Vectors heads, tails;                            // of sentence vectors, consecutive
    const std::int64_t *row_documents = nullptr;     // [rows] ascending
    const std::uint32_t *row_lengths = nullptr;      // [rows]
    std::int64_t rows = 0;
    bool single_rows = true;  // every document has a single row
    // Bounds, see coil/lists/bounds.py.
    const float *list_norms = nullptr;            // [lists]
    const std::uint8_t *list_factors = nullptr;   // [lists] in steps of 1/255
    const std::uint32_t *long_lists = nullptr;    // [long_count] ascending
    const std::uint32_t *long_offsets = nullptr;  // [long_count + 1] into blocks
    std::int64_t long_count = 0;
    const std::uint32_t *block_mentions = nullptr;  // [blocks]
    const float *block_norms = nullptr;             // [blocks]
    const std::uint8_t *block_factors = nullptr;    // [blocks]
    const std::uint8_t *tail_norms = nullptr;       // [rows] in steps of norm_step
    float norm_step = 0.0f;
    float longest_sentence = 0.0f;
    double mean_length = 0.0;  // the factors were computed with this, k1 and b
    double k1 = 0.0, b = 0.0;

    int n_c() const { return heads.dim + tails.dim; }
};

// One vector of a query, in all forms that the kernels use.
struct QueryVector {
    int dim = 0;
    std::vector<float> exact;            // [dim padded to 64]
    std::vector<std::int16_t> codes;     // [dim padded to 64] 15-bit codes, exact ~ codes * scale
    std::vector<std::int8_t> high, low;  // [dim padded to 64] codes = high * 128 + low
    float scale = 0.0f;
    std::int32_t code_sum = 0;
    float norm = 0.0f;  // length of the longer of exact and codes * scale, rounded up
};

// The factor of a posting: tf / (tf + c0 + c1 * length of the row), or 1.
struct Saturation {
    bool weighted = false;
    float c0 = 0.0f, c1 = 0.0f;
};

struct QueryToken {
    std::string key;
    float base = 0.0f;
    QueryVector vector;         // dim 0: only counts matter
    std::int64_t multiple = 1;  // how often the query contains it
};

struct Query {
    std::vector<QueryToken> tokens;
    int n_t = 0;
    QueryVector head, tail;  // of the sentence vector; dim 0: none
    Saturation saturation;
    bool floor = true;  // a token adds at least 0

    bool is_dense(const SegmentView &segment) const { return head.dim > 0 && segment.heads.dim > 0; }
};

// Consecutive postings of one list: `count` from `first` on, with the mentions [begin, end).
struct Stretch {
    std::int64_t first = 0, count = 0;
    std::int64_t begin = 0, end = 0;
};

// What a stretch adds to its rows: factor * (base + the best product)+, on the grid, `multiple` times.
struct Term {
    const QueryVector *vector = nullptr;  // nullptr: no products
    float base = 0.0f;
    std::int64_t multiple = 1;
    bool floor = true;
    Saturation saturation;
};

// The query of `find_open`: the head of its sentence vector, and the score that rows need.
struct HeadQuery {
    const QueryVector &head;
    float tail_step;  // the most that a step of a tail's length can add
    float longest;    // the most that a whole sentence vector can add
    float needed;     // rounded down
};

// A table of functions for each instruction set; all of them give the same bits.
struct Kernels {
    // Adds the contribution of a stretch of postings to scores[row - first_row].
    void (*add_list)(const SegmentView &, const Stretch &, const Term &, std::int64_t first_row, std::int64_t *scores);
    // The best product of each run of mentions; `runs` has begin, end, begin, end, ...
    void (*best_products)(const Vectors &, const std::int64_t *runs, std::size_t count, const QueryVector &, float *best);
    // Finds rows, which are ascending, among those of postings [begin, end): pairs of the index in `wanted` and the posting.
    std::size_t (*find_rows)(const std::uint16_t *rows, std::int64_t begin, std::int64_t end, const std::int32_t *wanted,
                             std::size_t count, std::int64_t *found);
    // Adds the products of rows [begin, end) to scores[row - begin].
    void (*add_rows)(const Vectors &, std::int64_t begin, std::int64_t end, const QueryVector &, std::int64_t *scores);
    // Adds the products of chosen rows to scores[i].
    void (*pick_rows)(const Vectors &, const std::int32_t *chosen, std::size_t count, const QueryVector &, std::int64_t *scores);
    // Positions, relative to `begin`, of rows [begin, end) that may reach the needed score, given their scores[row - begin].
    std::size_t (*find_open)(const SegmentView &, std::int64_t begin, std::int64_t end, const HeadQuery &, const std::int64_t *scores,
                             std::int32_t *places, std::int64_t *looked_at);
    // Positions of scores that reach a threshold; `places` has room for all of them.
    std::size_t (*find_above)(const std::int64_t *scores, std::size_t count, std::int64_t threshold, std::int32_t *places);
};

extern float SCALES[256];  // the scale of each scale byte

const Kernels &portable_kernels();
#if defined(COIL_X86)
const Kernels &avx2_kernels();
const Kernels &avx512_kernels();
#elif defined(COIL_ARM64)
const Kernels &neon_kernels();
#endif

}  // namespace coil
