// A segment in the form that the kernels read. Everything is checked before it is read: whatever the arrays contain, a search
// stays within them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>

#include "arrays.hpp"
#include "dictionary.hpp"
#include "postings.hpp"

namespace coil {

class Segment {
  public:
    // The arrays have their names from docs/format.md; the bounds were computed with `k1` and `b`.
    //
    // The caller must keep the arrays alive; the segment itself does not. Python lets other threads run while it unmaps the file
    // of an array, and a daemon thread that returns from that to a destructor while the process exits aborts the process.
    Segment(nb::dict named, std::int64_t n_t, double longest_sentence, double k1, double b) {
        Arrays found(std::move(named));
        arrays_ = &found;
        const Span<std::uint32_t> list_offsets = arrays_->get<std::uint32_t>("list_offsets");
        const Span<std::uint32_t> posting_offsets = arrays_->get<std::uint32_t>("posting_offsets");
        const Span<std::uint16_t> posting_rows = arrays_->get<std::uint16_t>("posting_rows");
        const Span<std::int64_t> row_documents = arrays_->get<std::int64_t>("row_documents");
        const Span<std::uint32_t> row_lengths = sized<std::uint32_t>("row_lengths", row_documents.size);
        check(list_offsets.size > 0, "list_offsets", "has the wrong size");
        const std::int64_t lists = list_offsets.size - 1, mentions = list_offsets[lists], rows = row_documents.size;
        check(rows <= MOST_ROWS, "row_documents", "has more than 65,536 rows");
        view.lists = lists;
        view.rows = rows;
        view.list_offsets = list_offsets.data;
        view.posting_offsets = posting_offsets.data;
        view.posting_rows = posting_rows.data;
        view.posting_starts = sized<std::uint64_t>("posting_starts", (mentions + 63) / 64).data;
        view.row_documents = row_documents.data;
        view.row_lengths = row_lengths.data;
        view.mentions = vectors("vectors", "vector_scales", mentions, n_t);
        view.heads = vectors("sentence_heads", "sentence_head_scales", rows, arrays_->width("sentence_heads"));
        view.tails = vectors("sentence_tails", "sentence_tail_scales", rows, arrays_->width("sentence_tails"));
        check(view.heads.dim <= HEAD && (!view.tails.dim || view.heads.dim == HEAD), "sentence_heads", "has the wrong width");
        check(std::isfinite(longest_sentence) && longest_sentence >= 0.0, "longest_sentence is not a length");
        view.longest_sentence = static_cast<float>(longest_sentence * (1 + 1e-6));
        view.mean_length = rows ? static_cast<double>(mentions) / static_cast<double>(rows) : 0.0;
        view.k1 = k1;
        view.b = b;
        take_bounds();
        const Span<std::uint32_t> key_blocks = take_keys();
        const nb::gil_scoped_release release;
        check_offsets("list_offsets", list_offsets, mentions);
        check(posting_offsets.size == lists + 1, "posting_offsets", "has the wrong size");
        check_offsets("posting_offsets", posting_offsets, posting_rows.size);
        check_offsets("key_blocks", key_blocks, keys_size_);
        check_long_lists();
        check_documents(row_documents);
        const std::int64_t *const last = row_documents.data + rows;
        view.single_rows = std::adjacent_find(row_documents.data, last) == last;
        check(std::all_of(row_lengths.data, row_lengths.data + rows, [](std::uint32_t length) { return length < 1u << 31; }),
              "row_lengths", "contains a number that is too large");
        check_norms("list_norms", view.list_norms, lists);
        check_norms("block_norms", view.block_norms, blocks_);
        checked_ = std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(lists));
        arrays_ = nullptr;
    }

    SegmentView view;

    // The number of the list with a key, -1 if there is none.
    std::int64_t find(const std::string &key) {
        std::call_once(begun_, [this] { beginnings_ = block_beginnings(view.keys); });
        return find_key(view.keys, beginnings_, key);
    }

    // Checks a list before its first use: a row out of range would be written outside the scores, and a wrong number of bits would
    // be read outside the rows. Needs no lock: if two threads check the same list, the effect is the same. Returns whether the list
    // had to be checked.
    bool check_list(std::int64_t list) {
        std::atomic<bool> &checked = checked_[static_cast<std::size_t>(list)];
        if (checked.load(std::memory_order_relaxed)) return false;
        const std::uint16_t *const rows = view.posting_rows + view.posting_offsets[list];
        const std::uint16_t *const stop = view.posting_rows + view.posting_offsets[list + 1];
        check(std::adjacent_find(rows, stop, std::greater_equal<>()) == stop && (rows == stop || stop[-1] < view.rows), "posting_rows",
              "of a list are not in ascending order, or outside the segment");
        check_starts(list, stop - rows);
        checked.store(true, std::memory_order_relaxed);
        return true;
    }

  private:
    static constexpr std::int64_t MOST_ROWS = 65536;

    template <class T>
    Span<T> sized(const char *name, std::int64_t size) {
        const Span<T> found = arrays_->get<T>(name);
        check(found.size == size, name, "has the wrong size");
        return found;
    }

    Vectors vectors(const char *name, const char *scales_name, std::int64_t count, std::int64_t dim) {
        // First, so that no product below overflows.
        check(dim >= 0 && dim <= MOST_DIM, name, "has vectors of a width that the kernels do not support");
        Vectors found;
        const Span<std::uint8_t> values = arrays_->get_values(name, found.kind);
        check(values.size == count * dim, name, "has the wrong size");
        found.data = values.data;
        found.count = count;
        found.dim = static_cast<int>(dim);
        if (found.kind == Kind::int8) found.scales = sized<std::uint8_t>(scales_name, count).data;
        return found;
    }

    Span<std::uint32_t> take_keys() {
        const Span<std::uint8_t> keys = arrays_->get<std::uint8_t>("keys");
        const Span<std::uint32_t> blocks = sized<std::uint32_t>("key_blocks", (view.lists + BLOCK_KEYS - 1) / BLOCK_KEYS + 1);
        view.keys = {keys.data, blocks.data, view.lists};
        keys_size_ = keys.size;
        return blocks;
    }

    void take_bounds() {
        const Span<std::uint32_t> long_lists = arrays_->get<std::uint32_t>("long_lists");
        const Span<std::uint32_t> long_offsets = sized<std::uint32_t>("long_offsets", long_lists.size + 1);
        blocks_ = long_offsets[long_lists.size];
        view.list_norms = sized<float>("list_norms", view.lists).data;
        view.list_factors = sized<std::uint8_t>("list_factors", view.lists).data;
        view.long_lists = long_lists.data;
        view.long_offsets = long_offsets.data;
        view.long_count = long_lists.size;
        view.block_mentions = sized<std::uint32_t>("block_mentions", blocks_).data;
        view.block_norms = sized<float>("block_norms", blocks_).data;
        view.block_factors = sized<std::uint8_t>("block_factors", blocks_).data;
        view.tail_norms = sized<std::uint8_t>("tail_norms", view.rows).data;
        const Span<float> step = arrays_->get<float>("norm_step");
        check(step.size == 1 && step[0] >= 0.0f && std::isfinite(step[0]), "norm_step", "is not a length");
        view.norm_step = step[0];
    }

    // Offsets must begin at 0, never decrease, and end at `last`: then every difference of two of them is safe to compute.
    static void check_offsets(const char *name, const Span<std::uint32_t> &offsets, std::int64_t last) {
        check(offsets[0] == 0 && offsets[offsets.size - 1] == last, name, "does not run from 0 to the end of its array");
        check(std::is_sorted(offsets.data, offsets.data + offsets.size), name, "is not ascending");
    }

    // Exactly the lists with more than BLOCK postings must be long, each with the right number of blocks.
    void check_long_lists() const {
        std::int64_t number = 0, block = 0;
        check(view.long_offsets[0] == 0, "long_offsets", "does not run from 0 to the end of its array");
        for (std::int64_t list = 0; list < view.lists; ++list) {
            const std::int64_t postings = view.posting_offsets[list + 1] - view.posting_offsets[list];
            if (postings <= BLOCK) continue;
            check(number < view.long_count && view.long_lists[number] == list, "long_lists", "does not match the lengths of lists");
            block += (postings + BLOCK - 1) / BLOCK;
            check(view.long_offsets[++number] == block, "long_offsets", "gives a list the wrong number of blocks");
        }
        check(number == view.long_count, "long_lists", "does not match the lengths of lists");
    }

    // The bits of a list must be one per posting, the first at the start of the list, with every block at its stored start.
    void check_starts(std::int64_t list, std::int64_t postings) const {
        const std::int64_t begin = view.list_offsets[list], end = view.list_offsets[list + 1];
        const std::uint32_t *blocks = nullptr;
        if (const std::int64_t number = find_long(view, list); number >= 0) blocks = view.block_mentions + view.long_offsets[number];
        bool right = begin == end || (view.posting_starts[begin / 64] >> (begin % 64) & 1) != 0;
        std::int64_t count = 0;
        for (std::int64_t word = begin / 64; word * 64 < end && right; ++word) {
            std::uint64_t bits = bits_of(view, word, begin, end);
            const std::int64_t here = count_bits(bits);
            // At most one block begins in a word: a block has as many postings as a word has bits.
            const std::int64_t next = (count + BLOCK - 1) / BLOCK * BLOCK;
            if (blocks != nullptr && next < count + here && next < postings)
                right = word * 64 + select_bit(bits, static_cast<int>(next - count)) == blocks[next / BLOCK];
            count += here;
        }
        check(right && count == postings, "posting_starts", "does not match the postings of a list");
    }

    static void check_documents(const Span<std::int64_t> &documents) {
        check(!documents.size || documents[0] >= 0, "row_documents", "contains a negative number");
        check(std::is_sorted(documents.data, documents.data + documents.size), "row_documents", "is not ascending");
    }

    static void check_norms(const char *name, const float *norms, std::int64_t count) {
        check(std::all_of(norms, norms + count, [](float norm) { return norm >= 0.0f; }), name, "contains a negative number or NaN");
    }

    Arrays *arrays_ = nullptr;  // only during construction
    std::int64_t keys_size_ = 0, blocks_ = 0;
    std::once_flag begun_;
    std::vector<std::uint64_t> beginnings_;  // computed when a key is first looked up
    std::unique_ptr<std::atomic<bool>[]> checked_;  // [lists]
};

}  // namespace coil
