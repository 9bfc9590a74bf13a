/*
 * Objects of a store as files of Hadoop, by URLs that the driver has signed: see signed.py.
 *
 * This text is compiled in the driver as Handover.java is, and shipped to executors as a jar. Which
 * objects there are, with the size and the tag each of them was listed with, is told by the
 * configuration, which Spark sends along with a query. URLs are secrets: no message has one.
 */

package ebbmq;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.function.IntFunction;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.VectoredReadUtils;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.util.Progressable;

/** The objects of one query; nothing can be written, and nothing is asked of the store to open. */
public final class ObjectFiles extends FileSystem {
  private static final String OBJECTS = "ebbmq.object.urls";
  private static final String TRIES = "ebbmq.object.tries";
  private static final int TRIES_DEFAULT = 6;
  /** Made for each file that is opened, of the text that all files of a query share. */
  private static final Map PARSED = Collections.synchronizedMap(new WeakHashMap());

  private URI uri;
  private Map objects;

  public void initialize(URI name, Configuration conf) throws IOException {
    super.initialize(name, conf);
    setConf(conf);
    uri = URI.create(name.getScheme() + ":///");
    // As it is: texts of a configuration may have variables in them, which others put in.
    objects = objectsOf(conf.getRaw(OBJECTS));
  }

  private static Map objectsOf(String text) throws IOException {
    Map known = text == null ? new HashMap() : (Map) PARSED.get(text);
    if (known == null) {
      known = new HashMap();
      JsonNode named = new ObjectMapper().readTree(text);
      for (int at = 0; at < named.size(); at++) {
        JsonNode each = (JsonNode) named.get(at);
        known.put(((JsonNode) each.get(0)).asText(), each);
      }
      PARSED.put(text, known);
    }
    return known;
  }

  private JsonNode named(Path path) throws FileNotFoundException {
    JsonNode found = (JsonNode) objects.get(path.toUri().getPath());
    if (found == null) {
      throw new FileNotFoundException(path + " is none of the objects of this query");
    }
    return found;
  }

  public String getScheme() {
    return uri.getScheme();
  }

  public URI getUri() {
    return uri;
  }

  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    StoredObject object = new StoredObject(named(path), getConf().getInt(TRIES, TRIES_DEFAULT));
    return new FSDataInputStream(new ObjectStream(object, statistics));
  }

  public FileStatus getFileStatus(Path path) throws IOException {
    return new FileStatus(((JsonNode) named(path).get(1)).asLong(), false, 1, 0, 0, path);
  }

  public FileStatus[] listStatus(Path path) throws IOException {
    FileStatus[] itself = {getFileStatus(path)};
    return itself;
  }

  public void setWorkingDirectory(Path path) {}

  public Path getWorkingDirectory() {
    return new Path(uri);
  }

  public FSDataOutputStream create(
      Path path,
      FsPermission permission,
      boolean overwrite,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    throw readOnly(path);
  }

  public FSDataOutputStream append(Path path, int bufferSize, Progressable progress)
      throws IOException {
    throw readOnly(path);
  }

  public boolean rename(Path path, Path to) throws IOException {
    throw readOnly(path);
  }

  public boolean delete(Path path, boolean recursive) throws IOException {
    throw readOnly(path);
  }

  public boolean mkdirs(Path path, FsPermission permission) throws IOException {
    throw readOnly(path);
  }

  private static IOException readOnly(Path path) {
    return new IOException(path + " can only be read");
  }
}

/**
 * An object as a stream. Small reads are answered from a piece that is fetched ahead, the first one
 * with the whole end of a file. Large ones, as of columns, are requests of their own; where each
 * begins at the end of the one before, as groups of rows do, more and more is fetched ahead.
 */
final class ObjectStream extends FSInputStream {
  private static final int AHEAD_BYTES = 1 << 16;
  private static final int AHEAD_BYTES_MAX = 1 << 23;
  /** To read over so much costs less than another request. */
  private static final int GAP_BYTES = 1 << 17;
  private static final int TOGETHER_BYTES = 1 << 24;

  private final StoredObject object;
  private final FileSystem.Statistics statistics;
  private long at = 0;
  private byte[] ahead = new byte[0];
  private int aheadBytes = 0;
  private long aheadAt = 0;
  private long fetchedTo = -1;
  private long window = AHEAD_BYTES;

  ObjectStream(StoredObject object, FileSystem.Statistics statistics) {
    this.object = object;
    this.statistics = statistics;
  }

  public synchronized void seek(long position) throws IOException {
    if (position < 0 || position > object.size) {
      throw new EOFException(position + " is not in " + object.name);
    }
    at = position;
  }

  public synchronized long getPos() {
    return at;
  }

  public boolean seekToNewSource(long position) {
    return false;
  }

  public synchronized int available() {
    return (int) Math.min(Integer.MAX_VALUE, object.size - at);
  }

  public synchronized int read() throws IOException {
    byte[] one = new byte[1];
    return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
  }

  public synchronized int read(byte[] into, int from, int count) throws IOException {
    int found = read(at, into, from, count);
    at += Math.max(0, found);
    return found;
  }

  public synchronized int read(long position, byte[] into, int from, int count)
      throws IOException {
    if (count == 0) {
      return 0;
    }
    int wanted = (int) Math.min(count, object.size - position);
    if (wanted <= 0) {
      return -1;
    }
    if (position < aheadAt || position >= aheadAt + aheadBytes) {
      boolean goesOn = position == fetchedTo;
      long more = Math.min(AHEAD_BYTES_MAX, 2 * Math.max(window, (long) wanted));
      window = goesOn ? more : AHEAD_BYTES;
      if (wanted >= window) {
        fetch(position, into, from, wanted);
        return wanted;
      }
      long begin = goesOn ? position : Math.max(0, Math.min(position, object.size - window));
      fetchAhead(begin, (int) Math.min(window, object.size - begin));
    }
    int begin = (int) (position - aheadAt);
    int found = Math.min(wanted, aheadBytes - begin);
    System.arraycopy(ahead, begin, into, from, found);
    return found;
  }

  private void fetchAhead(long begin, int count) throws IOException {
    aheadBytes = 0;
    if (ahead.length < count) {
      ahead = new byte[count];
    }
    fetch(begin, ahead, 0, count);
    aheadAt = begin;
    aheadBytes = count;
  }

  private void fetch(long begin, byte[] into, int from, int count) throws IOException {
    object.fetch(begin, into, from, count);
    statistics.incrementBytesRead(count);
    fetchedTo = begin + count;
  }

  /** Ranges that are close to each other in one request. */
  public void readVectored(List ranges, IntFunction allocate) throws IOException {
    List sorted =
        VectoredReadUtils.validateAndSortRanges(ranges, Optional.of(Long.valueOf(object.size)));
    int first = 0;
    while (first < sorted.size()) {
      long begin = ((FileRange) sorted.get(first)).getOffset();
      long end = endOf(sorted, first);
      int next = first + 1;
      while (next < sorted.size()
          && ((FileRange) sorted.get(next)).getOffset() - end <= GAP_BYTES
          && endOf(sorted, next) - begin <= TOGETHER_BYTES) {
        end = endOf(sorted, next);
        next++;
      }
      byte[] bytes = null;
      if (next - first > 1) {
        bytes = new byte[(int) (end - begin)];
        readFully(begin, bytes, 0, bytes.length);
      }
      for (int each = first; each < next; each++) {
        give((FileRange) sorted.get(each), bytes, begin, allocate);
      }
      first = next;
    }
  }

  private static long endOf(List ranges, int at) {
    FileRange range = (FileRange) ranges.get(at);
    return range.getOffset() + range.getLength();
  }

  /** A range that was read with others, or that is read by itself. */
  private void give(FileRange range, byte[] together, long begin, IntFunction allocate)
      throws IOException {
    int length = range.getLength();
    ByteBuffer found = (ByteBuffer) allocate.apply(length);
    if (together != null) {
      found.put(together, (int) (range.getOffset() - begin), length).flip();
    } else if (found.hasArray()) {
      readFully(range.getOffset(), found.array(), found.arrayOffset(), length);
      found.limit(length);
    } else {
      byte[] bytes = new byte[length];
      readFully(range.getOffset(), bytes, 0, length);
      found.put(bytes).flip();
    }
    range.setData(CompletableFuture.completedFuture(found));
  }
}

/** An object, by ranges: the one that was listed, or an error. */
final class StoredObject {
  private static final int CONNECT_MS = 10000;
  private static final int ANSWER_MS = 60000;
  private static final int PAUSE_MS = 100;
  private static final int TOLD_BYTES = 1000;
  private static final Pattern RANGE = Pattern.compile("bytes ([0-9]+)-[0-9]+/([0-9]+)");
  private static final Pattern CODE = Pattern.compile("<Code>([A-Za-z]+)</Code>");

  final String name;
  final long size;
  private final String tag;
  private final String url;
  private final int tries;

  StoredObject(JsonNode named, int tries) {
    name = ((JsonNode) named.get(0)).asText();
    size = ((JsonNode) named.get(1)).asLong();
    JsonNode told = (JsonNode) named.get(2);
    tag = told.isNull() ? null : told.asText();
    url = ((JsonNode) named.get(3)).asText();
    this.tries = tries;
  }

  /** Bytes of the object; what a connection gave before it broke is not asked for again. */
  void fetch(long begin, byte[] into, int from, int count) throws IOException {
    int done = 0;
    int failures = 0;
    while (true) {
      String why = "the answer ended before its time";
      try {
        done += get(begin + done, into, from + done, count - done);
        if (done == count) {
          return;
        }
      } catch (FileNotFoundException gone) {
        throw gone;
      } catch (AccessControlException refused) {
        throw refused;
      } catch (IOException failed) {
        why = shown(failed);
      }
      failures++;
      if (failures >= tries) {
        throw new IOException(
            "storage_failed; " + name + " could not be read in " + tries + " tries: " + why);
      }
      pause(failures);
    }
  }

  private int get(long begin, byte[] into, int from, int count) throws IOException {
    HttpURLConnection asked = (HttpURLConnection) new URL(url).openConnection();
    asked.setConnectTimeout(CONNECT_MS);
    asked.setReadTimeout(ANSWER_MS);
    asked.setInstanceFollowRedirects(false);
    asked.setUseCaches(false);
    asked.setRequestProperty("Range", "bytes=" + begin + "-" + (begin + count - 1));
    if (tag != null) {
      // A list of Azure has tags without the signs that belong to them.
      asked.setRequestProperty("If-Match", tag.endsWith("\"") ? tag : "\"" + tag + "\"");
    }
    int code = asked.getResponseCode();
    if (code < 400 && code != HttpURLConnection.HTTP_PARTIAL) {
      // There may be much in the answer, and none of it is of use.
      asked.disconnect();
      throw refusal(code, "");
    }
    if (code != HttpURLConnection.HTTP_PARTIAL) {
      throw refusal(code, codeIn(asked.getErrorStream()));
    }
    String told = asked.getHeaderField("Content-Range");
    Matcher range = RANGE.matcher(told == null ? "" : told);
    boolean isKnown = range.matches();
    InputStream body = asked.getInputStream();
    int done = 0;
    try {
      if (!isKnown || Long.parseLong(range.group(1)) != begin) {
        asked.disconnect();
        throw new IOException("the store answered with another range");
      }
      if (Long.parseLong(range.group(2)) != size) {
        asked.disconnect();
        throw gone();
      }
      while (done < count) {
        int found = body.read(into, from + done, count - done);
        if (found < 0) {
          break;
        }
        done += found;
      }
    } catch (IOException broken) {
      if (done == 0) {
        throw broken;
      }
    } finally {
      body.close();
    }
    return done;
  }

  private FileNotFoundException gone() {
    return new FileNotFoundException(
        "gone; "
            + name
            + " is there no more, or another one by that name: it was compacted, replaced or let go"
            + " after it was found; read again: what took its place is found then");
  }

  /** What an answer means: that it is of no use to ask again, or that it may be. */
  private IOException refusal(int code, String told) {
    String answer = "HTTP " + code + told;
    if (code == 404 || code == 410 || code == 412 || code == 416) {
      return gone();
    }
    // Spark takes other exceptions for damage, which it may be told to pass over.
    if (code < 500 && code != 408 && code != 429) {
      return new AccessControlException(
          "refused; the store does not take the URL that was signed to read "
              + name
              + " ("
              + answer
              + "): it may have expired, or what it was signed with; ask again, as each query has"
              + " URLs of its own");
    }
    return new IOException(answer);
  }

  /** The code that stores give in the text of an error, and nothing else of it. */
  private static String codeIn(InputStream text) {
    if (text == null) {
      return "";
    }
    try {
      try {
        String told = new String(text.readNBytes(TOLD_BYTES), StandardCharsets.UTF_8);
        Matcher code = CODE.matcher(told);
        return code.find() ? " " + code.group(1) : "";
      } finally {
        text.close();
      }
    } catch (IOException broken) {
      return "";
    }
  }

  /** What failed, unless it quotes the URL. */
  private static String shown(IOException error) {
    String kind = error.getClass().getSimpleName();
    String told = String.valueOf(error.getMessage());
    return told.indexOf('?') < 0 ? kind + ": " + told : kind;
  }

  private static void pause(int failures) throws IOException {
    try {
      Thread.sleep((long) PAUSE_MS << Math.min(failures, 6));
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException();
    }
  }
}
