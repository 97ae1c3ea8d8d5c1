// Shared by exhaustive and pruned search: ranges of rows, steps of lists, and the k best so far.
#pragma once
#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "search.hpp"

namespace coil {

constexpr std::int64_t FIRST_RANGES = 16;  // the first ranges are this many times smaller, so that a threshold is known early
constexpr std::int64_t FEW = 64;            // hits
constexpr std::int64_t NONE = std::numeric_limits<std::int64_t>::min();

struct Range {
    int segment;
    std::int64_t begin, end;  // rows
};

// Ranges never separate the rows of a document. The first ones are small, unless a search finds a threshold by its lists.
inline std::vector<Range> cut(const Segments &segments, const Options &options, bool by_lists) {
    std::vector<Range> ranges;
    const std::int64_t most = options.range_rows;
    std::int64_t size = by_lists ? most : std::max<std::int64_t>(most / FIRST_RANGES, 1);
    for (std::size_t s = 0; s < segments.size(); ++s) {
        const SegmentView &segment = *segments[s];
        for (std::int64_t begin = 0; begin < segment.rows;) {
            std::int64_t end = std::min(begin + size, segment.rows);
            while (end < segment.rows && segment.row_documents[end] == segment.row_documents[end - 1]) ++end;
            ranges.push_back({static_cast<int>(s), begin, end});
            begin = end;
            // A pruned search for few hits has a threshold after the first range; for many hits, it rises step by step.
            if (options.prune && options.k <= FEW) size = most;
            if (ranges.size() % 2 == 0) size = std::min(size * 2, most);
        }
    }
    return ranges;
}

// The k best found so far, and up to `spare` more, since selecting the k best each time would take longer. All threads share
// the `threshold`, which a candidate has to reach.
class TopK {
  public:
    TopK(std::int64_t k, std::int64_t spare, std::int64_t at_least)
        : k_(static_cast<std::size_t>(k)), spare_(static_cast<std::size_t>(spare)), at_least_(at_least), threshold_(at_least) {}

    std::int64_t threshold() const { return threshold_.load(std::memory_order_relaxed); }

    void add(const std::vector<Found> &candidates) {
        const std::lock_guard<std::mutex> guard(lock_);
        std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(best_), [&](const Found &f) { return f.score >= at_least_; });
        if (best_.size() < k_ + spare_) return;
        std::nth_element(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(k_ - 1), best_.end(), is_better);
        best_.resize(k_);
        threshold_.store(std::max(threshold(), best_.back().score), std::memory_order_relaxed);
    }

    // Raises the threshold, if k documents are known to have at least this score.
    void raise(std::int64_t threshold) {
        const std::lock_guard<std::mutex> guard(lock_);
        threshold_.store(std::max(threshold_.load(std::memory_order_relaxed), threshold), std::memory_order_relaxed);
    }

    std::vector<Found> sorted() {
        if (best_.size() > k_) {
            std::nth_element(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(k_), best_.end(), is_better);
            best_.resize(k_);
        }
        std::sort(best_.begin(), best_.end(), is_better);
        return std::move(best_);
    }

  private:
    static constexpr auto is_better = [](const Found &a, const Found &b) { return a.before(b); };

    std::size_t k_, spare_;
    std::int64_t at_least_;
    std::atomic<std::int64_t> threshold_;
    std::mutex lock_;
    std::vector<Found> best_;
};

// Memory for scores, reused by later searches: allocating new memory would take longer than filling it. A clean room contains
// zeros, and its user must restore them.
class Room {
  public:
    explicit Room(bool clean = false) : kept_(clean ? 1 : 0) {
        const std::lock_guard<std::mutex> guard(lock());
        spare().reserve(SPARE);  // so that the destructor cannot fail
        if (spare().empty()) return;
        values_ = std::move(spare().back());
        spare().pop_back();
    }
    ~Room() {
        if (values_.size() > MOST || in_use_) return;
        const std::lock_guard<std::mutex> guard(lock());
        if (spare().size() < SPARE) spare().push_back(std::move(values_));
    }
    Room(const Room &) = delete;
    Room &operator=(const Room &) = delete;

    // Memory for this many scores; its content is undefined, except in a clean room.
    std::int64_t *of(std::int64_t count) {
        if (memory_fault.strikes()) throw std::bad_alloc();
        if (values_.size() < static_cast<std::size_t>(count)) values_.resize(static_cast<std::size_t>(count));
        in_use_ = kept_ == 1;
        return values_.data();
    }

    // Reports that all scores are 0 again.
    void is_clean() { in_use_ = false; }

  private:
    static constexpr std::size_t MOST = 3 << 19, SPARE = 8;  // scores kept in one room, and rooms
    static std::mutex &lock() {
        static std::mutex one;
        return one;
    }
    std::vector<std::vector<std::int64_t>> &spare() const {
        static std::vector<std::vector<std::int64_t>> rooms[2];
        return rooms[kept_];
    }
    const std::size_t kept_;  // among the rooms of this kind
    bool in_use_ = false;     // a clean room that may contain other numbers than 0
    std::vector<std::int64_t> values_;
};

// Lists are read in steps, so that the deadline can be checked, and queries can share what is in the cache. Steps begin at the
// start of blocks.
constexpr std::int64_t STEP = 16384, SHARED_STEP = 2048;  // postings

inline std::int64_t bytes_of(const Vectors &vectors, std::int64_t count) { return count * vectors.dim * bytes_of(vectors.kind); }

// The end of the step that contains a posting.
inline std::int64_t step_end(const List &list, std::int64_t posting, std::int64_t step, std::int64_t last) {
    return std::min(list.first + ((posting - list.first) / step + 1) * step, last);
}

inline Term term_of(const Query &query, const QueryToken &token) {
    return {query.n_t ? &token.vector : nullptr, token.base, token.multiple, query.floor, query.saturation};
}

// The work of a stretch in bytes, for `Watch`.
inline std::int64_t work_of(const SegmentView &segment, const Term &term, const Stretch &stretch) {
    const std::int64_t vectors = term.vector != nullptr ? bytes_of(segment.mentions, stretch.end - stretch.begin) : 0;
    return vectors + 16 * stretch.count;
}

// The number of rows whose vectors are read between two checks of the deadline.
inline std::int64_t rows_step(const Vectors &vectors) {
    return std::max<std::int64_t>(Watch::BYTES / std::max<std::int64_t>(bytes_of(vectors, 1), 1), 64);
}

// Adds a row to the candidates; rows must be added in ascending order. The score of a document is that of its best row.
inline void add_candidate(const SegmentView &segment, const Range &range, std::int64_t row, std::int64_t score,
                          std::vector<Found> &candidates) {
    const std::int64_t ordinal = segment.row_documents[row];
    if (!candidates.empty() && candidates.back().ordinal == ordinal && candidates.back().segment == range.segment) {
        if (score > candidates.back().score) {
            candidates.back().score = score;
            candidates.back().row = static_cast<std::int32_t>(row);
        }
        return;
    }
    candidates.push_back({score, ordinal, range.segment, static_cast<std::int32_t>(row)});
}

// Without a sentence part, a document that scores exactly 0 is not a hit.
inline void drop_zeros(std::vector<Found> &candidates) {
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), [](const Found &f) { return f.score == 0; }),
                     candidates.end());
}

// Whether a row is the only one of its document.
inline bool alone(const SegmentView &segment, std::int64_t row) {
    const std::int64_t ordinal = segment.row_documents[row];
    return (row == 0 || segment.row_documents[row - 1] != ordinal) &&
           (row + 1 == segment.rows || segment.row_documents[row + 1] != ordinal);
}

}  // namespace coil
