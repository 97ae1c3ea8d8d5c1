// What both ways of searching need: ranges of rows, the lists of a query in a segment, and the k best so far.
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

constexpr std::int64_t FIRST_RANGES = 8;  // the first ranges are this much smaller: a threshold is known early
constexpr std::int64_t NONE = std::numeric_limits<std::int64_t>::min();

struct Range {
    int segment;
    std::int64_t begin, end;  // rows
    std::size_t number;       // among the segment's ranges
};

// Ranges never part the rows of one document. With `early`, the first ones are small.
inline std::vector<Range> cut(const Segments &segments, const Options &options, bool early) {
    std::vector<Range> ranges;
    const std::int64_t most = options.range_rows;
    std::int64_t size = std::max<std::int64_t>(early ? most / FIRST_RANGES : most, 1);
    for (std::size_t s = 0; s < segments.size(); ++s) {
        const SegmentView &segment = *segments[s];
        const std::size_t first = ranges.size();
        for (std::int64_t begin = 0; begin < segment.rows;) {
            std::int64_t end = std::min(begin + size, segment.rows);
            while (end < segment.rows && segment.row_documents[end] == segment.row_documents[end - 1]) ++end;
            ranges.push_back({static_cast<int>(s), begin, end, ranges.size() - first});
            begin = end;
            if (ranges.size() % 2 == 0) size = std::min(size * 2, most);
        }
    }
    return ranges;
}

// A bound as a whole number on the grid, rounded up with room for the rounding of a product of MOST_DIM terms.
inline std::int64_t bound_of(double value) {
    const double raised = std::max(value, 0.0) * (1.0 + 2e-4) * 4294967296.0 + 2.0;
    return raised < 4e18 ? static_cast<std::int64_t>(raised) : static_cast<std::int64_t>(4e18);
}

inline std::int64_t plus(std::int64_t a, std::int64_t b) {
    std::int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return std::numeric_limits<std::int64_t>::max();
    return sum;
}

// The k best found so far, and up to `spare` more: to cut off the rest takes time, to find it useless takes less. What a
// candidate needs is known to all threads as `threshold`.
class TopK {
  public:
    TopK(std::int64_t k, std::int64_t spare, std::int64_t at_least)
        : k_(static_cast<std::size_t>(k)), spare_(static_cast<std::size_t>(spare)), threshold_(at_least) {}

    std::int64_t threshold() const { return threshold_.load(std::memory_order_relaxed); }

    void add(const std::vector<Found> &candidates) {
        const std::lock_guard<std::mutex> guard(lock_);
        best_.insert(best_.end(), candidates.begin(), candidates.end());
        if (best_.size() < k_ + spare_) return;
        std::nth_element(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(k_ - 1), best_.end(), is_better);
        best_.resize(k_);
        threshold_.store(std::max(threshold(), best_.back().score), std::memory_order_relaxed);
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
    static bool is_better(const Found &a, const Found &b) { return a.before(b); }

    std::size_t k_, spare_;
    std::atomic<std::int64_t> threshold_;
    std::mutex lock_;
    std::vector<Found> best_;
};

// Memory for scores that outlives a search: fresh memory would cost more than it takes to fill it.
class Room {
  public:
    Room() {
        const std::lock_guard<std::mutex> guard(lock());
        spare().reserve(SPARE);  // so that the destructor cannot fail
        if (spare().empty()) return;
        values_ = std::move(spare().back());
        spare().pop_back();
    }
    ~Room() {
        if (values_.size() > MOST) return;
        const std::lock_guard<std::mutex> guard(lock());
        if (spare().size() < SPARE) spare().push_back(std::move(values_));
    }
    Room(const Room &) = delete;
    Room &operator=(const Room &) = delete;

    // Room for so many scores; what is in them is not said.
    std::int64_t *of(std::int64_t count) {
        if (memory_fault.strikes()) throw std::bad_alloc();
        if (values_.size() < static_cast<std::size_t>(count)) values_.resize(static_cast<std::size_t>(count));
        return values_.data();
    }

  private:
    static constexpr std::size_t MOST = 3 << 19, SPARE = 8;  // scores kept in one room, and rooms
    static std::mutex &lock() {
        static std::mutex one;
        return one;
    }
    static std::vector<std::vector<std::int64_t>> &spare() {
        static std::vector<std::vector<std::int64_t>> rooms;
        return rooms;
    }
    std::vector<std::int64_t> values_;
};

// One list of a query in one segment.
struct Part {
    const QueryToken *token = nullptr;
    std::int64_t list = -1;  // place in list_ids
    std::int64_t begin = 0;  // of its mentions
    std::int64_t bound = 0;
    std::vector<std::int64_t> cuts;  // where the mentions of each of the segment's ranges begin, and the end

    std::pair<std::int64_t, std::int64_t> within(const Range &range) const { return {cuts[range.number], cuts[range.number + 1]}; }
};

inline std::int64_t find_list(const SegmentView &segment, std::int32_t list) {
    const std::int32_t *end = segment.list_ids + segment.lists;
    const std::int32_t *found = std::lower_bound(segment.list_ids, end, list);
    return found != end && *found == list ? found - segment.list_ids : -1;
}

// `ends` are the ends of the segment's ranges.
inline std::vector<Part> parts_of(const SegmentView &segment, const Query &query, const std::vector<std::int64_t> &ends) {
    std::vector<Part> parts;
    for (const QueryToken &token : query.tokens) {
        const std::int64_t list = find_list(segment, token.list);
        if (list < 0) continue;
        const std::uint16_t *const begin = segment.mention_rows + segment.list_offsets[list];
        const std::uint16_t *const end = segment.mention_rows + segment.list_offsets[list + 1], *at = begin;
        Part part{&token, list, segment.list_offsets[list], 0, {segment.list_offsets[list]}};
        for (const std::int64_t row : ends) {
            at = row == segment.rows ? end : std::lower_bound(at, end, row, [](std::uint16_t a, std::int64_t b) { return a < b; });
            part.cuts.push_back(at - segment.mention_rows);
        }
        if (segment.list_norms != nullptr)
            part.bound = bound_of(static_cast<double>(token.vector.norm) * segment.list_norms[list]);
        parts.push_back(std::move(part));
    }
    // The most promising list first. Sums have no order, so the scores do not depend on this.
    std::stable_sort(parts.begin(), parts.end(), [](const Part &a, const Part &b) { return a.bound > b.bound; });
    return parts;
}

// Vectors that are worked through between two looks at the deadline: whole groups.
inline std::int64_t step_of(const Vectors &vectors) {
    const std::int64_t bytes = std::max<std::int64_t>(static_cast<std::int64_t>(vectors.dim) * bytes_of(vectors.kind), 1);
    return std::max<std::int64_t>(Watch::BYTES / bytes / LANES, 4) * LANES;
}

inline std::int64_t bytes_of(const Vectors &vectors, std::int64_t count) { return count * vectors.dim * bytes_of(vectors.kind); }

// Mentions [begin, end) of a list, in steps; false when the time is over.
inline bool scan(const Kernels &kernels, const SegmentView &segment, std::int64_t begin, std::int64_t end, const QueryVector &vector,
                 bool floor, std::int64_t first_row, std::int64_t *scores, ScanState &state, Watch &watch) {
    const std::int64_t step = step_of(segment.mentions);
    for (std::int64_t at = begin, to; at < end; at = to) {
        to = std::min((at / LANES) * LANES + step, end);
        kernels.scan(segment.mentions, segment.mention_rows, at, to, vector, floor, static_cast<std::int32_t>(first_row), scores, state);
        if (watch.is_late(bytes_of(segment.mentions, to - at))) return false;
    }
    return true;
}

// Candidates of rows in ascending order: a document scores what its best row scores. Rows of one document come
// together, in one call.
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

// Without a sentence part, a document that scores exactly 0 is no hit.
inline void drop_zeros(std::vector<Found> &candidates) {
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), [](const Found &f) { return f.score == 0; }),
                     candidates.end());
}

// Whether a row is all there is of its document.
inline bool alone(const SegmentView &segment, std::int64_t row) {
    const std::int64_t ordinal = segment.row_documents[row];
    return (row == 0 || segment.row_documents[row - 1] != ordinal) &&
           (row + 1 == segment.rows || segment.row_documents[row + 1] != ordinal);
}

}  // namespace coil
