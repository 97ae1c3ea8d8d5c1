// Candidates: rows of a range that may still be hits. Each has an upper bound, which is tightened step by step until it is the
// score: heads and tails of sentence vectors, then the vectors of lists. A row that falls below the threshold is dropped.
#pragma once
#include <cmath>
#include <functional>
#include <utility>

#include "lines.hpp"

namespace coil {

constexpr std::int64_t A_LOOKUP = 12;      // postings that can be read in the time of one lookup
constexpr std::size_t FEWEST = 16;         // fewest rows settled at a time
constexpr std::int64_t SEEDED = NONE / 2;  // replaces the score of a row that has been settled

// What is known of a line in a range.
enum class Known : std::uint8_t { nothing, counted, scored };

// What is known of some rows.
struct Progress {
    std::int64_t rest = 0;     // the most that everything unknown can add
    std::vector<Known> known;  // of each line
    bool heads = false, tails = false;
};

class Settler {
  public:
    Settler(const Kernels &kernels, const Options &options, const Query &query, TopK &top, Deadline &deadline)
        : kernels_(kernels), options_(options), query_(query), top_(top), watch_(deadline) {}

    Stats stats;

    // Whether bounds are small enough to be added without overflow.
    static bool can_add_up(const SegmentView &segment, const Query &query, const Parts &parts) {
        std::int64_t sum = sentence_bound(segment, query);
        for (const Part &part : parts) sum = plus(sum, part.bound);
        return sum < -SEEDED / 4;
    }

  protected:
    struct Candidate {
        std::int32_t row;    // relative to the first row of the range
        std::int64_t known;  // the known part of its score
    };
    using Candidates = std::vector<Candidate>;

    static std::int64_t sentence_bound(const SegmentView &segment, const Query &query) {
        if (!query.is_dense(segment)) return 0;
        return bound_of(std::hypot(query.head.norm, query.tail.norm) * static_cast<double>(segment.longest_sentence));
    }

    // Starts a range, of which nothing is known yet.
    void enter(const SegmentView &segment, const std::vector<Line> &lines, const Range &range, const std::uint8_t *mask, Room &room) {
        segment_ = &segment;
        lines_ = &lines;
        range_ = range;
        mask_ = mask;
        rows_ = range.end - range.begin;
        scores_ = room.of(rows_);
        dense_ = query_.is_dense(segment);
        sentence_ = sentence_bound(segment, query_);
        tail_step_ = static_cast<double>(query_.tail.norm) * segment.norm_step;
        total_ = sentence_;
        slack_ = 2;  // every part is rounded
        postings_.clear();
        for (const Line &line : lines) {
            const std::int64_t begin = range.begin ? line.list.posting(segment, line.list.first, range.begin) : line.list.first;
            postings_.emplace_back(begin, range.end < segment.rows ? line.list.posting(segment, begin, range.end) : line.list.last);
            total_ += line.bound;
            slack_ += static_cast<std::int64_t>(line.tokens.size());
        }
        known_.rest = total_;
        known_.known.assign(lines.size(), Known::nothing);
        known_.heads = known_.tails = false;
        settled_.clear();
    }

    std::int64_t count_of(std::size_t i) const { return postings_[i].second - postings_[i].first; }

    bool is_allowed(std::int64_t row) const { return mask_ == nullptr || mask_[range_.begin + row]; }

    // Removes the best candidates and returns them; both parts stay in order.
    Candidates take_best(std::size_t count) {
        values_.clear();  // some of the best at a time, with a rising threshold
        std::int64_t least = NONE;
        const auto shrink = [&] {
            std::nth_element(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(count - 1), values_.end(), std::greater<>());
            values_.resize(count);
            least = values_.back();
        };
        for (const Candidate &candidate : candidates_) {
            if (candidate.known <= least) continue;
            values_.push_back(candidate.known);
            if (values_.size() == 4 * count) shrink();
        }
        if (values_.size() >= count) shrink();
        std::size_t ties = static_cast<std::size_t>(std::count(values_.begin(), values_.end(), least)), left = 0;
        Candidates best;
        best.reserve(count);
        for (const Candidate &candidate : candidates_) {
            if (candidate.known > least || (candidate.known == least && ties > 0 && ties--))
                best.push_back(candidate);
            else
                candidates_[left++] = candidate;
        }
        candidates_.resize(left);
        return best;
    }

    // Drops candidates that cannot reach the threshold.
    void drop(Candidates &candidates, std::int64_t rest) const {
        const std::int64_t threshold = top_.threshold();
        if (threshold == NONE) return;
        const std::int64_t needed = threshold - rest - slack_;
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(), [&](const Candidate &c) { return c.known < needed; }),
                         candidates.end());
    }

    // Computes everything still unknown about these rows, which are ascending; the hits are added to the k best.
    void settle(Candidates &batch, Progress progress) {
        const std::size_t first = settled_.size();
        for (const Candidate &candidate : batch) settled_.push_back(candidate.row);
        add_heads(batch, progress);
        add_tails(batch, progress);
        for (std::size_t i = 0; i < lines_->size() && !batch.empty(); ++i)
            if (progress.known[i] != Known::scored) look_up(batch, i, Known::scored, progress);
        if (watch_.is_late(0)) return;
        found_.clear();
        for (const Candidate &candidate : batch)
            add_candidate(*segment_, range_, range_.begin + candidate.row, candidate.known, found_);
        if (options_.without_zero) drop_zeros(found_);
        if (!found_.empty()) top_.add(found_);
        for (std::size_t i = first; i < settled_.size(); ++i) scores_[settled_[i]] = SEEDED;
    }

    // Adds a line of which nothing is known to the scores.
    void read_line(std::size_t i, Known how) {
        const Line &line = (*lines_)[i];
        if (how == Known::counted) {
            line.count(kernels_, postings_[i].first, postings_[i].second, range_.begin, scores_, false);
            watch_.is_late(16 * count_of(i));
        } else {
            score_line(i);
        }
        known_.known[i] = how;
        known_.rest -= line.bound;
    }

    void score_line(std::size_t i) {
        const Line &line = (*lines_)[i];
        const auto [begin, end] = postings_[i];
        for (std::int64_t at = begin, to; at < end; at = to) {
            to = step_end(line.list, at, STEP, end);
            const Stretch stretch = line.list.between(*segment_, at, to);
            for (const QueryToken *token : line.tokens) {
                const Term term = term_of(query_, *token);
                kernels_.add_list(*segment_, stretch, term, range_.begin, scores_);
                stats.mentions_scored += stretch.end - stretch.begin;
                if (watch_.is_late(work_of(*segment_, term, stretch))) return;
            }
        }
    }

    // Adds what a line adds to candidates, by looking up their postings.
    void look_up(Candidates &batch, std::size_t i, Known how, Progress &progress) {
        const Line &line = (*lines_)[i];
        const Known before = std::exchange(progress.known[i], how);
        if (before == Known::nothing) progress.rest -= line.bound;
        wanted_.clear();
        for (const Candidate &candidate : batch) wanted_.push_back(static_cast<std::int32_t>(range_.begin) + candidate.row);
        found_places_.resize(2 * batch.size());
        const std::size_t found = kernels_.find_rows(segment_->posting_rows, postings_[i].first, postings_[i].second, wanted_.data(),
                                                     wanted_.size(), found_places_.data());
        hits_.clear();
        for (std::size_t h = 0; h < found; ++h)
            hits_.push_back({static_cast<std::size_t>(found_places_[2 * h]), line.posting(found_places_[2 * h + 1])});
        watch_.is_late(64 * static_cast<std::int64_t>(batch.size()));
        if (before == Known::counted)
            for (const Hit &hit : hits_) batch[hit.candidate].known -= line.counted(hit.posting);
        if (how == Known::counted || line.is_counted_exactly())
            for (const Hit &hit : hits_) batch[hit.candidate].known += line.counted(hit.posting);
        else
            score_hits(batch, line);
        drop(batch, progress.rest);
    }

    void score_hits(Candidates &batch, const Line &line) {
        runs_.resize(2 * hits_.size());
        best_.resize(hits_.size());
        for (std::size_t h = 0; h < hits_.size(); ++h) {
            runs_[2 * h] = hits_[h].posting.begin;
            runs_[2 * h + 1] = hits_[h].posting.end;
            stats.mentions_scored += hits_[h].posting.end - hits_[h].posting.begin;
        }
        for (const QueryToken *token : line.tokens) {
            kernels_.best_products(segment_->mentions, runs_.data(), hits_.size(), token->vector, best_.data());
            for (std::size_t h = 0; h < hits_.size(); ++h)
                batch[hits_[h].candidate].known += line.scored(hits_[h].posting, *token, best_[h]);
            watch_.is_late(LANES * bytes_of(segment_->mentions, static_cast<std::int64_t>(hits_.size())));
        }
    }

    // Adds the heads of sentence vectors and the bounds of their tails, replacing the bound of whole vectors.
    void add_heads(Candidates &batch, Progress &progress) {
        if (progress.heads || !dense_) return;
        progress.heads = true;
        progress.rest -= sentence_;
        const std::int64_t first = range_.begin, count = static_cast<std::int64_t>(batch.size());
        const bool all = count * 3 > rows_;  // reading all of them in order is faster
        products_.assign(static_cast<std::size_t>(all ? rows_ : count), 0);
        if (all)
            kernels_.add_rows(segment_->heads, first, range_.end, query_.head, products_.data());
        else
            pick(segment_->heads, batch, query_.head);
        stats.heads_scored += all ? rows_ : count;
        watch_.is_late(bytes_of(segment_->heads, all ? rows_ : count));
        for (std::int64_t c = 0; c < count; ++c) {
            Candidate &candidate = batch[static_cast<std::size_t>(c)];
            candidate.known += products_[static_cast<std::size_t>(all ? candidate.row : c)] + tail_bound(candidate.row);
        }
        drop(batch, progress.rest);
    }

    std::int64_t tail_bound(std::int32_t row) const { return bound_of(tail_step_ * segment_->tail_norms[range_.begin + row]); }

    void add_tails(Candidates &batch, const Progress &progress) {
        if (progress.tails || !dense_) return;
        products_.assign(batch.size(), 0);
        pick(segment_->tails, batch, query_.tail);
        stats.sentences_scored += static_cast<std::int64_t>(batch.size());
        watch_.is_late(bytes_of(segment_->tails, static_cast<std::int64_t>(batch.size())));
        for (std::size_t c = 0; c < batch.size(); ++c) batch[c].known += products_[c] - tail_bound(batch[c].row);
        drop(batch, progress.rest);
    }

    void pick(const Vectors &vectors, const Candidates &batch, const QueryVector &q) {
        places_.resize(std::max(places_.size(), batch.size()));
        for (std::size_t c = 0; c < batch.size(); ++c) places_[c] = static_cast<std::int32_t>(range_.begin) + batch[c].row;
        kernels_.pick_rows(vectors, places_.data(), batch.size(), q, products_.data());
    }

    // Replaces the candidates by all rows of their documents.
    void whole_documents() {
        Candidates whole;
        const std::int64_t *const ordinals = segment_->row_documents + range_.begin;
        std::int64_t next = 0;
        for (const Candidate &candidate : candidates_) {
            if (candidate.row < next) continue;
            std::int64_t row = candidate.row;
            while (row > 0 && ordinals[row - 1] == ordinals[candidate.row]) --row;
            for (; row < rows_ && ordinals[row] == ordinals[candidate.row]; ++row) whole.push_back({static_cast<std::int32_t>(row), scores_[row]});
            next = row;
        }
        candidates_ = std::move(whole);
    }

    // Settles the best candidates first: they raise the threshold for the rest.
    void settle_best_first(Progress &progress) {
        std::size_t size = std::max(FEWEST, static_cast<std::size_t>(options_.k) / 4);
        Candidates batch;
        while (!candidates_.empty() && !watch_.is_late(0)) {
            drop(candidates_, progress.rest);
            if (!segment_->single_rows || candidates_.size() <= size + size / 2) {  // the rows of a document are settled together
                batch.swap(candidates_);
                candidates_.clear();
                score_more(batch, progress);
                settle(batch, progress);
                return;
            }
            batch = take_best(size);
            score_more(batch, progress);
            settle(batch, progress);
            size *= 2;
        }
    }

    // If many rows are to be settled, lists that were only counted are scored as a whole.
    void score_more(Candidates &batch, Progress &progress) {
        const std::int64_t count = static_cast<std::int64_t>(batch.size());
        bool any = false;
        for (std::size_t i = 0; i < lines_->size(); ++i) any = any || (known_.known[i] == Known::counted && count * A_LOOKUP >= count_of(i));
        if (!any) return;
        for (Candidates *some : {&batch, &candidates_})
            for (Candidate &candidate : *some) candidate.known -= scores_[candidate.row];
        for (std::size_t i = 0; i < lines_->size(); ++i) {
            const auto [begin, end] = postings_[i];
            if (known_.known[i] != Known::counted || count * A_LOOKUP < end - begin) continue;
            (*lines_)[i].count(kernels_, begin, end, range_.begin, scores_, true);
            score_line(i);
            known_.known[i] = progress.known[i] = Known::scored;
        }
        for (Candidates *some : {&batch, &candidates_})
            for (Candidate &candidate : *some) candidate.known += scores_[candidate.row];
    }

    struct Hit {
        std::size_t candidate;
        Posting posting;
    };

    const Kernels &kernels_;
    const Options &options_;
    const Query &query_;
    TopK &top_;
    Watch watch_;
    // The current range.
    const SegmentView *segment_ = nullptr;
    const std::vector<Line> *lines_ = nullptr;
    const std::uint8_t *mask_ = nullptr;
    Range range_{};
    std::int64_t *scores_ = nullptr;  // [rows_]
    std::int64_t rows_ = 0, slack_ = 0, sentence_ = 0, total_ = 0;
    double tail_step_ = 0.0;
    bool dense_ = false;
    Progress known_;           // of all rows
    std::vector<std::pair<std::int64_t, std::int64_t>> postings_;  // of each line, within the range
    // Reused buffers.
    Candidates candidates_;
    std::vector<std::int32_t> places_, wanted_, settled_;  // rows settled in this range
    std::vector<std::int64_t> products_, runs_, values_, found_places_;
    std::vector<float> best_;
    std::vector<Hit> hits_;
    std::vector<Found> found_;
};

}  // namespace coil
