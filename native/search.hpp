// Top-k over segments: rows are taken in ranges whose scores stay in the cache, lists and sentence vectors are
// read once, and what provably cannot enter the top k is skipped.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "threads.hpp"
#include "views.hpp"

namespace coil {

struct SegmentView {
    const std::int32_t *list_ids = nullptr;      // [lists] ascending
    const std::int64_t *list_offsets = nullptr;  // [lists + 1]
    std::int64_t lists = 0;
    const std::uint16_t *mention_rows = nullptr;  // [mentions]
    Vectors mentions;                             // in groups of 16
    Vectors sentences;                            // one after another
    const std::int64_t *row_documents = nullptr;  // [rows] ascending
    std::int64_t rows = 0;
    const float *list_norms = nullptr;            // [lists] no vector of the list is longer
    const std::int64_t *block_offsets = nullptr;  // [lists + 1] where a list's blocks begin in block_norms
    const float *block_norms = nullptr;           // [blocks]
    const float *sentence_norms = nullptr;        // [blocks of rows]
    Sketches sketches;                                  // quads 0: none
};

struct QueryToken {
    std::int32_t list = 0;
    QueryVector vector;
};

struct Query {
    std::vector<QueryToken> tokens;
    QueryVector sentence;  // dim 0: none
    bool floor = true;     // a token adds at least 0
};

struct Found {
    std::int64_t score;
    std::int64_t ordinal;
    std::int32_t segment;
    std::int32_t row;
    // Score descending, then order of insertion.
    bool before(const Found &other) const {
        return score != other.score ? score > other.score : ordinal < other.ordinal;
    }
};

struct Stats {
    std::int64_t mentions_scored = 0, mentions_skipped = 0, sentences_scored = 0, sentences_skipped = 0;
    std::int64_t sketches_scored = 0;
    void add(const Stats &other) {
        mentions_scored += other.mentions_scored;
        mentions_skipped += other.mentions_skipped;
        sentences_scored += other.sentences_scored;
        sentences_skipped += other.sentences_skipped;
        sketches_scored += other.sketches_scored;
    }
};

struct Options {
    std::int64_t k = 10;
    bool prune = true;
    bool without_zero = false;  // without a sentence part, a score of exactly 0 is no hit
    std::int64_t at_least = INT64_MIN;  // only scores from here on
    int threads = 1;
    std::int64_t range_rows = 16384;  // rows whose scores are kept at a time: 128 KiB
};

struct Result {
    std::vector<Found> found;  // best first
    Stats stats;
};

using Segments = std::vector<const SegmentView *>;
using Masks = std::vector<const std::uint8_t *>;  // a byte for each row of each segment (0: does not count), or nullptr
using Queries = std::vector<const Query *>;

// One result for each query, unless the deadline passes.
std::vector<Result> search(const Kernels &, const Segments &, const Masks &, const Queries &, const Options &, Deadline &);

// The score of every row of one segment.
void score_rows(const Kernels &, const SegmentView &, const Query &, std::int64_t *scores);

}  // namespace coil
