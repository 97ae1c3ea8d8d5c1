// Exhaustive search: everything is scored. Lists are read in steps, which all queries of a batch use while they are in the cache.
#pragma once
#include <functional>
#include <memory>

#include "ranges.hpp"

namespace coil {

constexpr std::int64_t SHARED_ROWS = 1024;  // sentence vectors that fit into the cache while the queries of a batch share them

class Exhauster {  // for one thread
  public:
    Exhauster(const Kernels &kernels, const Options &options, const Queries &queries, Deadline &deadline)
        : stats(queries.size()), kernels_(kernels), options_(options), queries_(queries), watch_(deadline) {}

    std::vector<Stats> stats;

    // False after the deadline.
    bool score(const SegmentView &segment, const Range &range, const std::vector<Parts> &parts) {
        const std::int64_t rows = range.end - range.begin;
        const std::int64_t count = rows * static_cast<std::int64_t>(queries_.size());
        scores_ = room_.of(count);
        std::fill(scores_, scores_ + count, 0);
        uses_.clear();
        for (std::size_t q = 0; q < queries_.size(); ++q)
            for (const Part &part : parts[q]) uses_.push_back({q, &part});
        std::stable_sort(uses_.begin(), uses_.end(), [](const Use &a, const Use &b) { return a.part->list.first < b.part->list.first; });
        for (std::size_t first = 0, last; first < uses_.size(); first = last) {
            last = first;
            while (last < uses_.size() && uses_[last].part->list.first == uses_[first].part->list.first) ++last;
            if (!add_list(segment, range, first, last)) return false;
        }
        return add_sentences(segment, range);
    }

    void collect(const SegmentView &segment, const Range &range, std::size_t query, const std::uint8_t *mask, TopK &top) {
        const std::int64_t rows = range.end - range.begin;
        const std::int64_t *scores = of_query(query, rows);
        places_.resize(static_cast<std::size_t>(rows) + LANES);
        std::int64_t threshold = top.threshold();
        const bool zeros = options_.without_zero && !queries_[query]->floor;  // scores of 0 are not hits, but negative ones are
        if (options_.without_zero && !zeros) threshold = std::max<std::int64_t>(threshold, 1);  // no score is below 0
        std::size_t above = kernels_.find_above(scores, static_cast<std::size_t>(rows), threshold, places_.data());
        if (segment.single_rows && mask == nullptr && !zeros) above = keep_best(scores, above);
        candidates_.clear();
        for (std::size_t i = 0; i < above; ++i) {
            if (i + 16 < above) __builtin_prefetch(segment.row_documents + range.begin + places_[i + 16]);
            const std::int64_t row = range.begin + places_[i], score = scores[places_[i]];
            if (options_.without_zero && score == 0 && alone(segment, row)) continue;
            if (mask == nullptr || mask[row]) add_candidate(segment, range, row, score, candidates_);
        }
        if (options_.without_zero) drop_zeros(candidates_);
        if (!candidates_.empty()) top.add(candidates_);
    }

  private:
    // Keeps the positions of the k best scores, and of those that tie with the last of them.
    std::size_t keep_best(const std::int64_t *scores, std::size_t count) {
        const std::size_t k = static_cast<std::size_t>(options_.k);
        if (count <= 2 * k) return count;
        values_.clear();
        for (std::size_t i = 0; i < count; ++i) values_.push_back(scores[places_[i]]);
        const auto worst = values_.begin() + static_cast<std::ptrdiff_t>(k - 1);
        std::nth_element(values_.begin(), worst, values_.end(), std::greater<>());
        const std::int64_t least = *worst;
        return static_cast<std::size_t>(std::remove_if(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(count),
                                                       [&](std::int32_t place) { return scores[place] < least; }) -
                                        places_.begin());
    }

    struct Use {
        std::size_t query;
        const Part *part;
    };

    std::int64_t *of_query(std::size_t query, std::int64_t rows) { return scores_ + static_cast<std::int64_t>(query) * rows; }

    // Adds one list for all queries that use it.
    bool add_list(const SegmentView &segment, const Range &range, std::size_t first, std::size_t last) {
        const List &list = uses_[first].part->list;
        const std::int64_t begin = list.posting(segment, list.first, range.begin), end = list.posting(segment, begin, range.end);
        for (std::int64_t at = begin, to; at < end; at = to) {
            to = step_end(list, at, last - first > 1 ? SHARED_STEP : STEP, end);
            const Stretch stretch = list.between(segment, at, to);
            for (std::size_t u = first; u < last; ++u) {
                const std::size_t q = uses_[u].query;
                const Term term = term_of(*queries_[q], *uses_[u].part->token);
                kernels_.add_list(segment, stretch, term, range.begin, of_query(q, range.end - range.begin));
                stats[q].mentions_scored += stretch.end - stretch.begin;
                if (watch_.is_late(work_of(segment, term, stretch))) return false;
            }
        }
        return true;
    }

    bool add_sentences(const SegmentView &segment, const Range &range) {
        const std::int64_t rows = range.end - range.begin;
        const std::int64_t step = queries_.size() > 1 ? SHARED_ROWS : std::min(rows_step(segment.heads), rows_step(segment.tails));
        for (std::int64_t at = range.begin; at < range.end; at += step)
            for (std::size_t q = 0; q < queries_.size(); ++q) {
                if (!queries_[q]->is_dense(segment)) continue;
                const std::int64_t to = std::min(at + step, range.end);
                std::int64_t *const scores = of_query(q, rows) + (at - range.begin);
                kernels_.add_rows(segment.heads, at, to, queries_[q]->head, scores);
                kernels_.add_rows(segment.tails, at, to, queries_[q]->tail, scores);
                stats[q].sentences_scored += to - at;
                if (watch_.is_late(bytes_of(segment.heads, to - at) + bytes_of(segment.tails, to - at))) return false;
            }
        return true;
    }

    const Kernels &kernels_;
    const Options &options_;
    const Queries &queries_;
    Watch watch_;
    Room room_;
    std::int64_t *scores_ = nullptr;  // [queries, rows of the range]
    std::vector<Use> uses_;
    std::vector<std::int32_t> places_;
    std::vector<std::int64_t> values_;
    std::vector<Found> candidates_;
};

inline void search_all(const Kernels &kernels, const Segments &segments, const Masks &masks, const Queries &queries,
                       const PartsOfQueries &parts, const std::vector<Range> &ranges, int threads, const Options &options,
                       Deadline &deadline, std::vector<std::unique_ptr<TopK>> &tops, std::vector<Result> &results) {
    std::atomic<std::size_t> next{0};
    std::mutex adding;
    Crew crew(threads);
    crew.run([&] {
        Exhauster exhauster(kernels, options, queries, deadline);
        for (std::size_t r = next++; r < ranges.size() && !crew.failed() && !deadline.look(); r = next++) {
            const Range &range = ranges[r];
            const std::size_t s = static_cast<std::size_t>(range.segment);
            if (!exhauster.score(*segments[s], range, parts[s])) return;
            for (std::size_t q = 0; q < queries.size(); ++q) exhauster.collect(*segments[s], range, q, masks[s], *tops[q]);
        }
        const std::lock_guard<std::mutex> guard(adding);
        for (std::size_t q = 0; q < queries.size(); ++q) results[q].stats.add(exhauster.stats[q]);
    });
}

}  // namespace coil
