import de.bwaldvogel.mongo.*;
import de.bwaldvogel.mongo.backend.*;
import de.bwaldvogel.mongo.backend.aggregation.Aggregation;
import de.bwaldvogel.mongo.backend.memory.*;
import de.bwaldvogel.mongo.bson.*;
import de.bwaldvogel.mongo.exception.*;
import de.bwaldvogel.mongo.oplog.*;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import io.netty.channel.Channel;
import java.net.InetSocketAddress;
import java.time.Instant;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.stream.*;

/** mongo-java-server as a one-node replica set: hello, sessions, transactions, change streams (events, pre/post images, tokens), splitVector, fail points. */
public class MongoReplicaSet {
  static final Object LOCK = new Object();
  static final Map<String, int[]> VERSIONS = Map.of("4.4", new int[]{4,4,29,9}, "5.0", new int[]{5,0,31,13}, "6.0", new int[]{6,0,20,17}, "7.0", new int[]{7,0,20,21}, "8.0", new int[]{8,0,10,25});

  static class Ver implements MongoVersion {
    final int[] v; Ver(int[] v) { this.v = v; }
    public List<Integer> getVersionArray() { return List.of(v[0], v[1], v[2], 0); }
    public String toVersionString() { return v[0] + "." + v[1] + "." + v[2]; }
    public int getWireVersion() { return v[3]; }
  }

  /** One entry of the log. */
  static class Ev {
    long ts; int idx; String type, db, coll; Object id; Document full, before, desc, extra; Document lsid; Object txn; Instant wall; UUID uuid; boolean expanded;
    String token() { return String.format("82%016X%08X", ts, idx + 1); }
  }
  static final List<Ev> LOG = new ArrayList<>();
  static String logStart = "82";                       // tokens below it: ChangeStreamHistoryLost
  static volatile long lastTs; static int lastSec, inc;
  static long nextTs() {
    int s = (int) (System.currentTimeMillis() / 1000);
    if (s > lastSec) { lastSec = s; inc = 0; }
    return lastTs = ((long) lastSec << 32) | (++inc);
  }
  static long nowTs() { return lastTs; }
  static String tokenAt(long ts) { return String.format("82%016X%08X", ts, 0xFFFFFFFF); }   // after every entry of ts
  static long tsOf(String t) { return Long.parseUnsignedLong(t.substring(2, 18), 16); }

  static class Txn { final long began = System.currentTimeMillis(); Channel channel; Document lsid; Object num; List<Ev> evs = new ArrayList<>(); }
  static final Map<String, Txn> TXNS = new HashMap<>();
  static final ThreadLocal<Txn> CUR = new ThreadLocal<>();
  static final ThreadLocal<Boolean> MUTE = ThreadLocal.withInitial(() -> false), REPLACE = ThreadLocal.withInitial(() -> false);
  static final ThreadLocal<List<Document>> INVALID = ThreadLocal.withInitial(ArrayList::new);   // errInfo of the command's refusals, in order
  static final Map<String, Document> COLLOPTS = new ConcurrentHashMap<>();  // ns -> create options
  static boolean images(String ns) { Document o = COLLOPTS.get(ns); return o != null && o.get("changeStreamPreAndPostImages") instanceof Document && Boolean.TRUE.equals(((Document) o.get("changeStreamPreAndPostImages")).get("enabled")); }

  static void emit(Ev e) {
    if (MUTE.get() || e.db.equals("local") || e.db.equals("config") || e.db.equals("admin") || (e.coll != null && e.coll.startsWith("system."))) return;
    Txn t = CUR.get();
    if (t != null) { e.lsid = t.lsid; e.txn = t.num; t.evs.add(e); return; }
    synchronized (LOCK) { e.ts = nextTs(); e.wall = Instant.now(); LOG.add(e); LOCK.notifyAll(); }
  }
  static Ev ev(String type, MongoCollection<?> c, Document doc) {
    Ev e = new Ev(); e.type = type; e.db = c.getDatabaseName(); e.coll = c.getCollectionName(); e.uuid = c.getUuid(); if (doc != null) e.id = doc.get("_id"); return e;
  }

  static class Coll extends MemoryCollection {
    Coll(MongoDatabase d, String n, CollectionOptions o, CursorRegistry r) { super(d, n, o, r); }
    @Override protected Integer addDocumentInternal(Document d) { validate(null, d); Integer p = super.addDocumentInternal(d); Ev e = ev("insert", this, d); e.full = d.cloneDeeply(); emit(e); return p; }
    /** What a document misses of the collection's validator, as mongod >= 5.0 tells it for a simple comparison. */
    void validate(Document old, Document d) {
      Document o = COLLOPTS.get(getFullName()), by = o == null || MUTE.get() ? null : (Document) o.get("validator");
      if (by == null || by.isEmpty() || "off".equals(o.get("validationLevel")) || "warn".equals(o.get("validationAction"))) return;
      DefaultQueryMatcher matcher = new DefaultQueryMatcher();
      if (matcher.matches(d, by) || old != null && "moderate".equals(o.get("validationLevel")) && !matcher.matches(old, by)) return;
      String field = by.keySet().iterator().next(); Object rule = by.get(field);
      Document details = new Document("operatorName", rule instanceof Document ? ((Document) rule).keySet().iterator().next() : field).append("specifiedAs", by).append("reason", d.containsKey(field) ? "comparison failed" : "field was missing");
      if (d.containsKey(field)) details.append("consideredValue", d.get(field));
      if (V5) INVALID.get().add(new Document("failingDocumentId", d.get("_id")).append("details", details));
      throw new MongoServerError(121, "DocumentValidationFailure", "Document failed validation");
    }
    @SuppressWarnings("unchecked") List<Index<Integer>> indexes() {
      try { java.lang.reflect.Field f = AbstractMongoCollection.class.getDeclaredField("indexes"); f.setAccessible(true); return (List<Index<Integer>>) f.get(this); } catch (ReflectiveOperationException e) { throw new IllegalStateException(e); }
    }
    @Override protected void handleUpdate(Integer p, Document o, Document n) {
      try { validate(o, n); } catch (MongoServerError e) {   // the library has changed the document already
        Document was = n.cloneDeeply(); n.clear(); n.putAll(o); for (Index<Integer> i : indexes()) i.updateInPlace(was, n, p, this); throw e;
      }
      Ev e = ev(REPLACE.get() ? "replace" : "update", this, n); e.full = n.cloneDeeply(); e.before = o.cloneDeeply();
      if (!REPLACE.get()) e.desc = diff(e.before, e.full);
      emit(e);
    }
    @Override protected void removeDocument(Integer p) { Document o = getDocument(p); super.removeDocument(p); if (o != null) { Ev e = ev("delete", this, o); e.before = o.cloneDeeply(); emit(e); } }
    @Override public synchronized Document updateDocuments(Document s, Document u, ArrayFilters a, boolean m, boolean up, Oplog op) {
      REPLACE.set(u.keySet().stream().noneMatch(k -> k.startsWith("$"))); try { return super.updateDocuments(s, u, a, m, up, op); } finally { REPLACE.set(false); }
    }
    @Override public synchronized Document findAndModify(Document q) {
      Object u = q.get("update"); REPLACE.set(u instanceof Document && ((Document) u).keySet().stream().noneMatch(k -> k.startsWith("$"))); try { return super.findAndModify(q); } finally { REPLACE.set(false); }
    }
  }
  static class Db extends MemoryDatabase {
    Db(String n, CursorRegistry r) { super(n, r); }
    @Override protected MemoryCollection openOrCreateCollection(String n, CollectionOptions o) {
      Coll c = new Coll(this, n, o, cursorRegistry);
      if (!n.startsWith("system.")) { Ev e = ev("create", c, null); e.expanded = true; emit(e); }
      return c;
    }
  }

  /** updateDescription the way mongod >= 5.0 gives it: dotted paths, array tails cut through truncatedArrays. */
  static boolean V5 = true;
  static Document diff(Document o, Document n) {
    Document up = new Document(); List<Object> rm = new ArrayList<>(), tr = new ArrayList<>(); diff("", o, n, up, rm, tr);
    Document d = new Document("updatedFields", up).append("removedFields", rm); return V5 ? d.append("truncatedArrays", tr) : d;
  }
  static void diff(String p, Document o, Document n, Document up, List<Object> rm, List<Object> tr) {
    for (String k : o.keySet()) if (!n.containsKey(k)) rm.add(p + k);
    for (String k : n.keySet()) diffVal(p + k, o.containsKey(k), o.get(k), n.get(k), up, rm, tr);
  }
  static boolean same(Object a, Object b) { return Objects.equals(a, b) && (a == null || a.getClass() == b.getClass()); }
  static void diffVal(String p, boolean had, Object a, Object b, Document up, List<Object> rm, List<Object> tr) {
    if (had && same(a, b)) return;
    if (had && a instanceof Document && b instanceof Document) { diff(p + ".", (Document) a, (Document) b, up, rm, tr); return; }
    if (had && a instanceof List && b instanceof List && !((List<?>) b).isEmpty() && !((List<?>) a).isEmpty()) {
      List<?> x = (List<?>) a, y = (List<?>) b; if (!V5 && y.size() < x.size()) { up.put(p, b); return; } int m = Math.min(x.size(), y.size()), same = 0;
      for (int i = 0; i < m; i++) if (same(x.get(i), y.get(i))) same++;
      if (same > 0 || m > 0 && x.get(0) instanceof Document) {
        if (y.size() < x.size()) tr.add(new Document("field", p).append("newSize", y.size()));
        for (int i = 0; i < y.size(); i++) diffVal(p + "." + i, i < x.size(), i < x.size() ? x.get(i) : null, y.get(i), up, rm, tr);
        return;
      }
    }
    up.put(p, b);
  }

  // ---- change streams -------------------------------------------------------------------------
  static class Stream_ {
    final long id; final String db, coll; final Document spec; final List<Document> pipeline; String pos; boolean dead; int scan;
    Stream_(long id, String db, String coll, Document spec, List<Document> pl, String pos) { this.id = id; this.db = db; this.coll = coll; this.spec = spec; this.pipeline = pl; this.pos = pos; }
  }
  static final Map<Long, Stream_> STREAMS = new ConcurrentHashMap<>();
  static final AtomicLong IDS = new AtomicLong(1L << 40);

  static class Backend extends MemoryBackend {
    final String host; final int port; final Ver ver; String set = System.getProperty("rs", "rs0"); Document fail; int failLeft; String hidden; int hiddenLeft; Document denied; final ObjectId election = new ObjectId(String.format("7fffffff%016x", System.currentTimeMillis()));   // a later start is a later term
    Backend(String host, int port, Ver ver) { this.host = host; this.port = port; this.ver = ver; version(ver); }
    @Override public MemoryDatabase openOrCreateDatabase(String n) { return new Db(n, getCursorRegistry()); }

    Document hello(boolean legacy) {
      String me = host + ":" + port;
      Document op = new Document("ts", new BsonTimestamp(nowTs())).append("t", 1L);
      return new Document(legacy ? "ismaster" : "isWritablePrimary", true).append("helloOk", true).append("setName", set).append("setVersion", 1).append("secondary", false)
        .append("hosts", List.of(me)).append("primary", me).append("me", me).append("electionId", election)
        .append("lastWrite", new Document("opTime", op).append("lastWriteDate", Instant.now()).append("majorityOpTime", op).append("majorityWriteDate", Instant.now()))
        .append("maxBsonObjectSize", 16777216).append("maxMessageSizeBytes", 48000000).append("maxWriteBatchSize", 100000).append("localTime", Instant.now())
        .append("logicalSessionTimeoutMinutes", 30).append("connectionId", 1).append("minWireVersion", 0).append("maxWireVersion", ver.getWireVersion()).append("readOnly", false).append("ok", 1.0);
    }
    static void unknown(String f) { throw new MongoServerError(40415, "Location40415", "BSON field '" + f + "' is an unknown field."); }
    Document ok() { return new Document("ok", 1.0); }
    Document stamp(Document r) {
      BsonTimestamp t = new BsonTimestamp(nowTs());
      if (r.containsKey("ok") && !(r.get("ok") instanceof Double)) r.put("ok", ((Number) r.get("ok")).doubleValue());
      return r.append("$clusterTime", new Document("clusterTime", t).append("signature", new Document("hash", new BinData(new byte[20])).append("keyId", 0L))).append("operationTime", t);
    }
    static String key(Document m) { return ((Document) m.get("lsid")).get("id") + "/" + m.get("txnNumber"); }

    @Override public Document handleCommand(Channel ch, String db, String cmd, Document q) {        // OP_QUERY: the handshake only
      if (cmd.equalsIgnoreCase("ismaster") || cmd.equalsIgnoreCase("hello")) return stamp(hello(cmd.equalsIgnoreCase("ismaster")));
      return super.handleCommand(ch, db, cmd, q);
    }
    @Override public Document handleMessage(MongoMessage m) {
      Document q = m.getDocument(); String cmd = q.keySet().iterator().next();
      Document f = fail;
      if (f != null && failLeft != 0 && ((List<?>) f.get("failCommands")).contains(cmd) && (f.get("namespace") == null || f.get("namespace").equals(m.getDatabaseName() + "." + q.get(cmd)))) {
        if (failLeft > 0) failLeft--;
        if (f.get("blockTimeMS") != null) try { Thread.sleep(((Number) f.get("blockTimeMS")).longValue()); } catch (InterruptedException e) { }
        if (Boolean.TRUE.equals(f.get("closeConnection"))) { m.getChannel().close(); throw new MongoServerException("closed"); }
        if (f.get("errorCode") != null) { Document r = new Document("ok", 0.0).append("errmsg", "Failing command via 'failCommand' failpoint").append("code", f.get("errorCode")).append("codeName", "FailPoint"); if (f.get("errorLabels") != null) r.append("errorLabels", f.get("errorLabels")); return stamp(r); }
      }
      Document no = denied(m.getDatabaseName(), cmd, q); if (no != null) return stamp(no);
      if (cmd.equals("getMore") && STREAMS.containsKey(((Number) q.get("getMore")).longValue())) return stamp(more(STREAMS.get(((Number) q.get("getMore")).longValue()), q));
      // A client that hears no answer to these for some seconds gives up everything it has under way.
      switch (cmd) { case "hello": return stamp(hello(false)); case "isMaster": case "ismaster": return stamp(hello(true)); case "ping": return stamp(ok()); default: }
      synchronized (LOCK) {
        Txn t = null;
        if (lifetime > 0) expire();
        if (q.containsKey("lsid") && Boolean.FALSE.equals(q.get("autocommit"))) {
          String k = key(q);
          if (Boolean.TRUE.equals(q.get("startTransaction"))) { t = new Txn(); t.lsid = (Document) q.get("lsid"); t.num = q.get("txnNumber"); TXNS.put(k, t); }
          else t = TXNS.get(k);
          if (EXPIRED.contains(k) && !cmd.equals("abortTransaction")) return stamp(again(251, "NoSuchTransaction", "Transaction " + q.get("txnNumber") + " has been aborted."));
          if (t != null && lifetime > 0 && meets(t, m.getDatabaseName(), cmd, q)) { TXNS.remove(k); undo(t); return stamp(again(112, "WriteConflict", "Write conflict during plan execution and yielding is disabled.")); }
          if (t == null && !cmd.equals("commitTransaction") && !cmd.equals("abortTransaction")) throw new MongoServerError(251, "NoSuchTransaction", "Given transaction number does not match any in-progress transactions.");
          if (cmd.equals("commitTransaction")) { TXNS.remove(k); if (t != null && !t.evs.isEmpty()) { long ts = nextTs(); int i = 0; for (Ev e : t.evs) { e.ts = ts; e.idx = i++; e.wall = Instant.now(); LOG.add(e); } LOCK.notifyAll(); } return stamp(ok()); }
          if (cmd.equals("abortTransaction")) { TXNS.remove(k); if (t != null) undo(t); return stamp(ok()); }
        }
        if (t != null) t.channel = m.getChannel();
        // What others have not committed nobody reads: it is taken back for that long.
        List<Txn> others = new ArrayList<>();
        if (READS.contains(cmd)) for (Txn o : TXNS.values()) if (o != t && !o.evs.isEmpty()) others.add(o);
        CUR.set(t); INVALID.get().clear();
        try { for (Txn o : others) undo(o); return stamp(explained(run(m, q, cmd).cloneDeeply())); } finally { CUR.remove(); for (Txn o : others) redo(o); }
      }
    }
    /** The `errInfo` of documents that a validator refused. */
    @SuppressWarnings("unchecked") static Document explained(Document reply) {
      Iterator<Document> info = INVALID.get().iterator();
      if (reply.get("writeErrors") != null) for (Document e : (List<Document>) reply.get("writeErrors")) if (Integer.valueOf(121).equals(e.get("code")) && info.hasNext()) e.put("errInfo", info.next());
      return reply;
    }
    /** Whether a role of the one user that there is has lost a command on a collection. mongod tells the command as it came, but for sequences of documents. */
    Document denied(String db, String cmd, Document q) {
      if (denied == null || !denied.get("namespace").equals(db + "." + q.get(cmd)) || !((List<?>) denied.get("commands")).contains(cmd)) return null;
      Document said = new Document(); for (Map.Entry<String, Object> e : q.entrySet()) if (!List.of("documents", "updates", "deletes").contains(e.getKey())) said.put(e.getKey(), e.getValue());
      return new Document("ok", 0.0).append("errmsg", "not authorized on " + db + " to execute command " + said.toString(true, "{ ", " }")).append("code", 13).append("codeName", "Unauthorized");
    }
    /** The passwords that `updateUser` gave, and who is logged in as whom: their connections end with the password. Any password is good for other users, and whoever does not log in may do everything. */
    static final Map<String, String> PASSWORDS = new ConcurrentHashMap<>();
    static final Map<Channel, String> LOGGED_IN = new ConcurrentHashMap<>();
    Document login(Channel channel, Document q) {
      Object payload = q.get("payload"); byte[] said = payload instanceof byte[] ? (byte[]) payload : ((BinData) payload).getData();
      String[] parts = new String(said, java.nio.charset.StandardCharsets.UTF_8).split("\0", -1);   // RFC 4616: who to act as, who it is, the password
      String wanted = PASSWORDS.get(parts[1]);
      if (wanted != null && !wanted.equals(parts[2])) return new Document("ok", 0.0).append("errmsg", "Authentication failed.").append("code", 18).append("codeName", "AuthenticationFailed");
      LOGGED_IN.put(channel, parts[1]);
      return ok().append("conversationId", 1).append("done", true).append("payload", new BinData(new byte[0]));
    }
    /** Seconds that a transaction may last. Only once somebody has set it do transactions end by it, and conflict: see `meets`. */
    int lifetime;
    static final Set<String> EXPIRED = new HashSet<>();
    void expire() {
      for (Iterator<Map.Entry<String, Txn>> i = TXNS.entrySet().iterator(); i.hasNext(); ) {
        Map.Entry<String, Txn> o = i.next(); if (System.currentTimeMillis() - o.getValue().began <= lifetime * 1000L) continue;
        EXPIRED.add(o.getKey()); i.remove(); undo(o.getValue());
      }
    }
    static Document again(int code, String name, String text) {
      return new Document("ok", 0.0).append("errmsg", text).append("code", code).append("codeName", name).append("errorLabels", List.of("TransientTransactionError"));
    }
    /** Whether the command would write a document, named by its _id, that another transaction has written and not committed. */
    boolean meets(Txn t, String db, String cmd, Document q) {
      List<?> writes = (List<?>) q.get(cmd.equals("insert") ? "documents" : cmd.equals("update") ? "updates" : cmd.equals("delete") ? "deletes" : "");
      if (writes == null) return false;
      for (Object w : writes) {
        Object id = (cmd.equals("insert") ? (Document) w : (Document) ((Document) w).get("q")).get("_id");
        for (Txn o : TXNS.values()) if (o != t) for (Ev e : o.evs) if (db.equals(e.db) && q.get(cmd).equals(e.coll) && Objects.equals(id, e.id)) return true;
      }
      return false;
    }
    /** A client that died leaves no transaction behind: its writes, which others see here, go with its connection. */
    @Override public void handleClose(Channel channel) {
      LOGGED_IN.remove(channel);
      synchronized (LOCK) { for (Iterator<Txn> i = TXNS.values().iterator(); i.hasNext(); ) { Txn t = i.next(); if (t.channel == channel) { i.remove(); undo(t); } } }
      super.handleClose(channel);
    }
    void undo(Txn t) {
      MUTE.set(true);
      try {
        for (int i = t.evs.size() - 1; i >= 0; i--) {
          Ev e = t.evs.get(i); MongoCollection<?> c = e.coll == null ? null : resolveDatabase(e.db).resolveCollection(e.coll, false); if (c == null) continue;
          Document by = new Document("_id", e.id);
          if (e.type.equals("insert")) c.deleteDocuments(by, 1);
          else if (e.type.equals("delete")) c.insertDocuments(List.of(e.before.cloneDeeply()));
          else if (e.type.equals("update") || e.type.equals("replace")) { c.deleteDocuments(by, 1); c.insertDocuments(List.of(e.before.cloneDeeply())); }
        }
      } finally { MUTE.set(false); }
    }
    static final Set<String> READS = Set.of("find", "aggregate", "count", "distinct");
    void redo(Txn t) {
      MUTE.set(true);
      try {
        for (Ev e : t.evs) {
          MongoCollection<?> c = e.coll == null ? null : resolveDatabase(e.db).resolveCollection(e.coll, false); if (c == null) continue;
          if (List.of("delete", "update", "replace").contains(e.type)) c.deleteDocuments(new Document("_id", e.id), 1);
          if (List.of("insert", "update", "replace").contains(e.type)) c.insertDocuments(List.of(e.full.cloneDeeply()));
        }
      } finally { MUTE.set(false); }
    }
    @SuppressWarnings("unchecked") Document run(MongoMessage m, Document q, String cmd) {
      String db = m.getDatabaseName(); Object arg = q.get(cmd);
      switch (cmd) {
        case "startSession": return ok().append("id", new Document("id", UUID.randomUUID())).append("timeoutMinutes", 30);
        case "saslStart": if (!"PLAIN".equals(q.get("mechanism"))) break; return login(m.getChannel(), q);
        case "updateUser": { PASSWORDS.put((String) arg, (String) q.get("pwd")); for (Map.Entry<Channel, String> e : LOGGED_IN.entrySet()) if (arg.equals(e.getValue())) e.getKey().close(); return ok(); }
        case "endSessions": case "refreshSessions": case "killSessions": case "killAllSessions": case "replSetInitiate": case "fsync": case "logRotate": return ok();
        case "appendOplogNote": { Ev e = new Ev(); e.ts = nextTs(); e.type = "noop"; e.db = ""; e.wall = Instant.now(); LOG.add(e); LOCK.notifyAll(); return ok(); }
        case "replSetGetStatus": return ok().append("set", set).append("myState", 1).append("term", 1L).append("members", List.of(new Document("_id", 0).append("name", host + ":" + port).append("health", 1.0).append("state", 1).append("stateStr", "PRIMARY").append("self", true)));
        case "replSetGetConfig": return ok().append("config", new Document("_id", set).append("version", 1).append("members", List.of(new Document("_id", 0).append("host", host + ":" + port))));
        case "getParameter": return ok().append("featureCompatibilityVersion", new Document("version", ver.v[0] + "." + ver.v[1]));
        case "configureFailPoint": {
          if ("hideDocuments".equals(arg)) { Object times = q.get("mode") instanceof Document ? ((Document) q.get("mode")).get("times") : null; hidden = "off".equals(q.get("mode")) ? null : (String) ((Document) q.get("data")).get("namespace"); hiddenLeft = times == null ? -1 : ((Number) times).intValue(); return ok(); }
          if ("denyCommands".equals(arg)) { denied = "off".equals(q.get("mode")) ? null : (Document) q.get("data"); return ok(); }
          Object mode = q.get("mode"); if ("off".equals(mode)) { fail = null; return ok(); }
          fail = (Document) q.get("data"); failLeft = mode instanceof Document && ((Document) mode).get("times") != null ? ((Number) ((Document) mode).get("times")).intValue() : -1; return ok();
        }
        case "truncateLog": { int n = arg instanceof Number ? ((Number) arg).intValue() : 0; while (LOG.size() > n) logStart = LOG.remove(0).token(); for (Stream_ s : STREAMS.values()) s.scan = 0; return ok().append("left", LOG.size()); }
        case "splitVector": return splitVector(q);
        case "collMod": { if (ver.v[0] < 6 && q.containsKey("changeStreamPreAndPostImages")) unknown("collMod.changeStreamPreAndPostImages"); String ns = db + "." + arg; Document o = COLLOPTS.computeIfAbsent(ns, k -> new Document()); if (q.containsKey("changeStreamPreAndPostImages")) o.put("changeStreamPreAndPostImages", q.get("changeStreamPreAndPostImages")); for (String k : List.of("validator", "validationLevel", "validationAction")) if (q.containsKey(k)) o.put(k, q.get(k)); return ok(); }
        case "create": { if (ver.v[0] < 6 && q.containsKey("changeStreamPreAndPostImages")) unknown("create.changeStreamPreAndPostImages"); Document r = super.handleMessage(m); Document o = new Document(); for (String k : List.of("changeStreamPreAndPostImages", "validator", "validationLevel", "validationAction", "collation", "timeseries")) if (q.containsKey(k)) o.put(k, q.get(k)); COLLOPTS.put(db + "." + arg, o); return r; }
        case "drop": { MongoCollection<?> c = resolveDatabase(db).resolveCollection((String) arg, false); if (c == null) { if (ver.v[0] >= 7) return ok(); throw new MongoServerError(26, "NamespaceNotFound", "ns not found"); } Document r = super.handleMessage(m); COLLOPTS.remove(db + "." + arg); emit(ev("drop", c, null)); return r; }
        case "dropDatabase": {
          for (Document d : batch(super.handleCommand(m.getChannel(), db, "listCollections", new Document("listCollections", 1)))) { MongoCollection<?> c = resolveDatabase(db).resolveCollection((String) d.get("name"), false); if (c != null && !c.getCollectionName().startsWith("system.")) emit(ev("drop", c, null)); COLLOPTS.remove(db + "." + d.get("name")); }
          Document r = super.handleMessage(m); Ev e = new Ev(); e.type = "dropDatabase"; e.db = db; emit(e); return r;
        }
        case "renameCollection": {
          String a = (String) arg, b = (String) q.get("to"); MongoCollection<?> c = resolveDatabase(a.substring(0, a.indexOf('.'))).resolveCollection(a.substring(a.indexOf('.') + 1), false); if (c == null) throw new MongoServerError(26, "NamespaceNotFound", "Source collection " + a + " does not exist");
          Ev e = ev("rename", c, null); Document r = super.handleMessage(m); e.extra = new Document("to", new Document("db", b.substring(0, b.indexOf('.'))).append("coll", b.substring(b.indexOf('.') + 1))); Document o = COLLOPTS.remove(a); if (o != null) COLLOPTS.put(b, o); emit(e); return r;
        }
        case "listCollections": {
          Document r = super.handleMessage(m), cur = (Document) r.get("cursor"), f = (Document) q.get("filter"); List<Document> out = new ArrayList<>();
          for (Document d : (List<Document>) cur.get("firstBatch")) { String n = (String) d.get("name"); if (n.startsWith("system.")) continue; d = d.cloneDeeply(); Document o = COLLOPTS.get(db + "." + n); if (o != null) d.put("options", o); MongoCollection<?> c = resolveDatabase(db).resolveCollection(n, false); if (c != null) d.put("info", new Document("readOnly", false).append("uuid", c.getUuid())); if (f == null || f.isEmpty() || new DefaultQueryMatcher().matches(d, f)) out.add(d); }
          cur.put("firstBatch", out); return r;
        }
        case "listDatabases": {
          Document r = super.handleMessage(m), f = (Document) q.get("filter"); List<Document> out = new ArrayList<>();
          for (Document d : (List<Document>) r.get("databases")) { d.put("sizeOnDisk", 8192L); if (!Boolean.TRUE.equals(d.get("empty")) && (f == null || f.isEmpty() || new DefaultQueryMatcher().matches(d, f))) out.add(d); }
          r.put("databases", out); return r;
        }
        case "insert": {
          int n = ((List<?>) q.get("documents")).size(); boolean ordered = !Boolean.FALSE.equals(q.get("ordered")); if (!q.containsKey("ordered")) q.put("ordered", true); Document r = super.handleMessage(m); List<Document> w = (List<Document>) r.get("writeErrors");
          if (w != null) r.put("n", ordered ? ((Number) w.get(0).get("index")).intValue() : n - w.size()); return r;
        }
        case "setParameter": { if (q.containsKey("transactionLifetimeLimitSeconds")) { Object was = lifetime; lifetime = ((Number) q.get("transactionLifetimeLimitSeconds")).intValue(); return ok().append("was", was); } if (!q.containsKey("minSnapshotHistoryWindowInSeconds")) break; Object was = historyWindow; historyWindow = ((Number) q.get("minSnapshotHistoryWindowInSeconds")).intValue(); return ok().append("was", was); }
        case "find": {
          Document rc = (Document) q.get("readConcern"); Object at = rc == null ? null : rc.get("atClusterTime");
          if (at == null && rc != null && "snapshot".equals(rc.get("level")) && CUR.get() == null) throw new MongoServerError(2, "BadValue", "not emulated: readConcern snapshot outside of transactions without atClusterTime");
          if ((db + "." + arg).equals(hidden) && q.get("filter") instanceof Document && ((Document) q.get("filter")).containsKey("_id")) { if (hiddenLeft > 0 && --hiddenLeft == 0) hidden = null; return ok().append("cursor", new Document("id", 0L).append("ns", db + "." + arg).append("firstBatch", new ArrayList<>())); }
          if (at != null || q.containsKey("min") || q.containsKey("max")) return bounded(q, db, (BsonTimestamp) at); break;
        }
        case "getMore": { Rest r = RESTS.get(((Number) arg).longValue()); if (r != null) return rest(r, q.get("batchSize") == null ? 0 : ((Number) q.get("batchSize")).intValue(), "nextBatch"); break; }
        case "aggregate": {
          List<Document> pl = (List<Document>) q.get("pipeline");
          if (!pl.isEmpty() && pl.get(0).containsKey("$changeStream")) return open(q, db, pl);
          if (!pl.isEmpty() && pl.get(0).containsKey("$collStats")) { Document st = super.handleCommand(m.getChannel(), db, "collstats", new Document("collstats", arg)); return new Document("cursor", new Document("id", 0L).append("ns", db + "." + arg).append("firstBatch", List.of(new Document("ns", db + "." + arg).append("count", st.get("count")).append("storageStats", st)))).append("ok", 1.0); }
          if (!pl.isEmpty() && pl.get(0).containsKey("$sample") && arg instanceof String) return sample(pl, db, (String) arg);
          for (Document s : pl) if (s.containsKey("$set")) { s.put("$addFields", s.remove("$set")); }
          break;
        }
        default:
      }
      return super.handleMessage(m);
    }
    @SuppressWarnings("unchecked") static List<Document> batch(Document r) { return (List<Document>) ((Document) r.get("cursor")).get("firstBatch"); }
    /** The library sorts by a random comparator, which fails on larger collections. */
    Document sample(List<Document> pl, String db, String coll) {
      MongoCollection<?> c = resolveDatabase(db).resolveCollection(coll, false); List<Document> all = new ArrayList<>();
      if (c != null) for (Document d : c.queryAll()) all.add(d);
      Collections.shuffle(all); int n = ((Number) ((Document) pl.get(0).get("$sample")).get("size")).intValue();
      List<Document> out = new ArrayList<>(all.subList(0, Math.min(n, all.size()))), rest = pl.subList(1, pl.size());
      if (!rest.isEmpty()) out = Aggregation.fromPipeline(rest, this::resolveDatabase, resolveDatabase(db), null, NoopOplog.get()).runStagesAsStream(out.stream()).collect(Collectors.toList());
      return new Document("cursor", new Document("id", 0L).append("ns", db + "." + coll).append("firstBatch", out)).append("ok", 1.0);
    }
    /** min inclusive, max exclusive, in the order of the index that is named, across types; all of its fields are compared. */
    Document bounded(Document q, String db, BsonTimestamp at) {
      Document min = (Document) q.get("min"), max = (Document) q.get("max");
      if (!(q.get("hint") instanceof Document)) throw new MongoServerError(51173, "When using min()/max() a hint of which index to use must be provided");
      Document index = (Document) q.get("hint"); List<String> keys = new ArrayList<>(index.keySet());
      for (Document bound : Arrays.asList(min, max)) if (bound != null && !keys.equals(new ArrayList<>(bound.keySet()))) throw new MongoServerError(51174, "The index chosen is not compatible with min/max");
      if (q.containsKey("sort") && !keys.equals(new ArrayList<>(((Document) q.get("sort")).keySet()))) throw new MongoServerError(2, "BadValue", "not emulated: min()/max() in another order than the index's");
      Document filter = (Document) q.get("filter");
      MongoCollection<?> c = resolveDatabase(db).resolveCollection((String) q.get("find"), false);
      Object[] low = min == null ? null : keys.stream().map(min::get).toArray(), high = max == null ? null : keys.stream().map(max::get).toArray();
      int[] signs = keys.stream().mapToInt(k -> ((Number) index.get(k)).intValue() < 0 ? -1 : 1).toArray();
      DefaultQueryMatcher matcher = new DefaultQueryMatcher(); List<Object[]> found = new ArrayList<>();
      if (filter != null) matcher.matches(new Document(), filter);          // an operator there is not is one in an empty range, too
      Iterable<Document> docs = at != null ? docsAt(db, (String) q.get("find"), c, at.getValue()) : c == null ? List.of() : c.queryAll();
      for (Document d : docs) {
        Object[] v = new Object[keys.size() + 1]; for (int i = 0; i < keys.size(); i++) { Object o = Utils.getSubdocumentValue(d, keys.get(i)); v[i] = o instanceof Missing ? null : o; }
        v[keys.size()] = d;
        if (low != null && order(v, low, signs) < 0 || high != null && order(v, high, signs) >= 0 || filter != null && !filter.isEmpty() && !matcher.matches(d, filter)) continue;
        found.add(v);
      }
      found.sort((a, b) -> order(a, b, signs));
      int l = q.get("limit") == null ? 0 : Math.abs(((Number) q.get("limit")).intValue());
      List<Document> out = found.stream().limit(l > 0 ? l : Long.MAX_VALUE).map(v -> (Document) v[v.length - 1]).map(d -> at == null ? d : d.cloneDeeply()).collect(Collectors.toList());
      Document proj = (Document) q.get("projection");
      if (proj != null && !proj.isEmpty()) out = Aggregation.fromPipeline(List.of(new Document("$project", proj)), this::resolveDatabase, resolveDatabase(db), null, NoopOplog.get()).runStagesAsStream(out.stream()).collect(Collectors.toList());
      return rest(new Rest(IDS.incrementAndGet(), db + "." + q.get("find"), out), q.get("batchSize") == null ? 101 : ((Number) q.get("batchSize")).intValue(), "firstBatch");
    }
    static int historyWindow = 300;                        // minSnapshotHistoryWindowInSeconds
    /** A collection as it was at a cluster time: as it is, without what the log has of it since. Since 5.0, for a while, and not across what happened to the collection as a whole. */
    List<Document> docsAt(String db, String coll, MongoCollection<?> c, long at) {
      if (ver.v[0] < 5) throw new MongoServerError(72, "InvalidOptions", "readConcern level snapshot is only valid in a transaction");
      if (Long.compareUnsigned(at, nowTs()) > 0) throw new MongoServerError(2, "BadValue", "not emulated: atClusterTime in the future");
      if ((at >>> 32) + historyWindow < System.currentTimeMillis() / 1000 || tokenAt(at).compareTo(logStart) < 0) throw new MongoServerError(239, "SnapshotTooOld", "Read timestamp " + new BsonTimestamp(at) + " is older than the oldest available timestamp.");
      Map<Object, Document> was = new HashMap<>();                                   // the library's order has equal keys that are none
      for (int i = LOG.size() - 1; i >= 0 && Long.compareUnsigned(LOG.get(i).ts, at) > 0; i--) {
        Ev e = LOG.get(i); Document to = e.extra == null ? null : (Document) e.extra.get("to");
        if (to != null && db.equals(to.get("db")) && coll.equals(to.get("coll")) || db.equals(e.db) && coll.equals(e.coll) && !List.of("insert", "update", "replace", "delete").contains(e.type)) throw new MongoServerError(246, "SnapshotUnavailable", "Unable to read from a snapshot due to pending collection catalog changes; please retry the operation.");
        if (!db.equals(e.db) || !coll.equals(e.coll)) continue;
        was.put(same(e.id), null); if (e.before != null) was.put(same(e.before.get("_id")), e.before);
      }
      List<Document> docs = new ArrayList<>();
      if (c != null) for (Document d : c.queryAll()) if (!was.containsKey(same(d.get("_id")))) docs.add(d);
      for (Document d : was.values()) if (d != null) docs.add(d);
      return docs;
    }
    static Object same(Object id) { return id instanceof Document ? id.toString() : id; }  // its fields in their order
    static int order(Object[] a, Object[] b, int[] signs) {
      ValueComparator c = ValueComparator.asc();
      for (int i = 0; i < signs.length; i++) { int o = c.compare(a[i], b[i]); if (o != 0) return o * signs[i]; }
      return 0;
    }
    /** What a cursor has still to give: what there was when it was opened. */
    static class Rest { final long id; final String ns; final List<Document> docs; int at; Rest(long id, String ns, List<Document> docs) { this.id = id; this.ns = ns; this.docs = docs; } }
    static final Map<Long, Rest> RESTS = new ConcurrentHashMap<>();
    Document rest(Rest r, int size, String name) {
      int end = size > 0 ? Math.min(r.docs.size(), r.at + size) : name.equals("firstBatch") ? r.at : r.docs.size(); List<Document> some = new ArrayList<>(r.docs.subList(r.at, end));
      r.at = end; boolean over = end == r.docs.size(); if (over) RESTS.remove(r.id); else RESTS.put(r.id, r);
      return new Document("cursor", new Document("id", over ? 0L : r.id).append("ns", r.ns).append(name, some)).append("ok", 1.0);
    }
    Document splitVector(Document q) {
      String ns = (String) q.get("splitVector"); int dot = ns.indexOf('.'); String key = ((Document) q.get("keyPattern")).keySet().iterator().next();
      MongoCollection<?> c = resolveDatabase(ns.substring(0, dot)).resolveCollection(ns.substring(dot + 1), false); List<Object> ks = new ArrayList<>();
      if (c != null) for (Document d : c.queryAll()) ks.add(d.get(key));
      ks.sort(ValueComparator.asc());
      Document min = (Document) q.get("min"), max = (Document) q.get("max"); int n = ks.size(); Document st = c == null ? null : c.getStats(); long size = st == null ? 0 : ((Number) st.get("size")).longValue();
      long avg = n == 0 ? 1 : Math.max(1, size / n), chunk = q.get("maxChunkSizeBytes") != null ? ((Number) q.get("maxChunkSizeBytes")).longValue() : q.get("maxChunkSize") != null ? ((Number) q.get("maxChunkSize")).longValue() << 20 : Math.max(1, size);
      long per = Math.max(1, chunk / avg / 2); if (q.get("maxChunkObjects") != null) per = Math.min(per, ((Number) q.get("maxChunkObjects")).longValue());
      if (Boolean.TRUE.equals(q.get("force"))) per = Math.max(1, n / 2);
      List<Document> out = new ArrayList<>(); Object last = null; int cnt = 0;
      for (Object k : ks) { if (min != null && ValueComparator.asc().compare(k, min.get(key)) < 0 || max != null && ValueComparator.asc().compare(k, max.get(key)) >= 0) continue; if (++cnt > per && !Objects.equals(k, last)) { out.add(new Document(key, k)); cnt = 0; } last = k; }
      return ok().append("timeMillis", 0L).append("splitKeys", out);
    }

    @SuppressWarnings("unchecked") Document open(Document q, String db, List<Document> pl) {
      Document spec = (Document) pl.get(0).get("$changeStream"); Object agg = q.get("aggregate"); String coll = agg instanceof String ? (String) agg : null;
      if (Boolean.TRUE.equals(spec.get("allChangesForCluster"))) { if (!db.equals("admin")) throw new MongoServerError(20, "IllegalOperation", "allChangesForCluster only on admin"); db = null; }
      List<Document> rest = new ArrayList<>(); for (Document s : pl.subList(1, pl.size())) { if (s.containsKey("$changeStreamSplitLargeEvent") && ver.v[0] >= 6) continue; s = s.cloneDeeply(); if (s.containsKey("$set")) s.put("$addFields", s.remove("$set")); rest.add(s); }
      if (ver.v[0] < 6) { for (String k : List.of("fullDocumentBeforeChange", "showExpandedEvents")) if (spec.containsKey(k)) unknown("$changeStream." + k); Object fd = spec.get("fullDocument"); if (fd != null && !fd.equals("default") && !fd.equals("updateLookup")) throw new MongoServerError(2, "BadValue", "unrecognized value for the 'fullDocument' option to the $changeStream stage. Expected \"default\" or \"updateLookup\", got \"" + fd + "\""); }
      String pos = tokenAt(nowTs()); Document tok = (Document) (spec.get("startAfter") != null ? spec.get("startAfter") : spec.get("resumeAfter"));
      if (tok != null) {
        if (!(tok.get("_data") instanceof String) || !((String) tok.get("_data")).matches("82[0-9A-F]{24}(FF)?")) throw new MongoServerError(260, "InvalidResumeToken", "invalid resume token");
        pos = (String) tok.get("_data");
        if (pos.endsWith("FF") && pos.length() > 26) { if (spec.get("startAfter") == null) throw new MongoServerError(260, "InvalidResumeToken", "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification."); pos = pos.substring(0, 26); }
      } else if (spec.get("startAtOperationTime") != null) pos = tokenAt(((BsonTimestamp) spec.get("startAtOperationTime")).getValue() - 1);
      if (pos.compareTo(logStart) < 0) throw new MongoServerError(286, "ChangeStreamHistoryLost", "Resume of change stream was not possible, as the resume point may no longer be in the oplog.");
      if (db != null) resolveDatabase(db);
      Stream_ s = new Stream_(IDS.incrementAndGet(), db, coll, spec, rest, pos); STREAMS.put(s.id, s);
      Document cur = (Document) q.get("cursor"); int bs = cur != null && cur.get("batchSize") != null ? ((Number) cur.get("batchSize")).intValue() : 101;
      List<Document> first = bs == 0 ? List.of() : take(s, bs);
      return reply(s, "firstBatch", first);
    }
    Document reply(Stream_ s, String k, List<Document> b) {
      String ns = s.db == null ? "admin.$cmd.aggregate" : s.db + "." + (s.coll == null ? "$cmd.aggregate" : s.coll); if (s.dead) STREAMS.remove(s.id);
      String pbrt = !b.isEmpty() && s.dead ? (String) ((Document) b.get(b.size() - 1).get("_id")).get("_data") : s.pos;
      return new Document("cursor", new Document("id", s.dead ? 0L : s.id).append("ns", ns).append(k, b).append("postBatchResumeToken", new Document("_data", pbrt))).append("ok", 1.0);
    }
    Document more(Stream_ s, Document q) {
      int bs = q.get("batchSize") != null ? ((Number) q.get("batchSize")).intValue() : 0; long end = System.nanoTime() + 1_000_000L * (q.get("maxTimeMS") != null ? ((Number) q.get("maxTimeMS")).longValue() : 1000);
      synchronized (LOCK) {
        while (true) {
          if (!STREAMS.containsKey(s.id)) throw new CursorNotFoundException(s.id);
          if (s.pos.compareTo(logStart) < 0) { STREAMS.remove(s.id); throw new MongoServerError(286, "ChangeStreamHistoryLost", "oplog fell behind"); }
          List<Document> b = take(s, bs); long left = (end - System.nanoTime()) / 1_000_000L;
          if (!b.isEmpty() || left <= 0) return reply(s, "nextBatch", b).cloneDeeply();
          try { LOCK.wait(left); } catch (InterruptedException e) { return reply(s, "nextBatch", b); }
        }
      }
    }
    @Override protected Document handleKillCursors(Document q) {
      for (Object id : (List<?>) q.get("cursors")) { STREAMS.remove(((Number) id).longValue()); RESTS.remove(((Number) id).longValue()); }
      return super.handleKillCursors(q);
    }
    List<Document> take(Stream_ s, int n) {
      List<Document> out = new ArrayList<>(); if (s.dead) return out;
      for (; s.scan < LOG.size(); s.scan++) {
        Ev e = LOG.get(s.scan); String t = e.token(); if (t.compareTo(s.pos) <= 0) continue;
        if (out.size() >= (n > 0 ? n : 20_000)) return out;   // a server's own answers end at 16 MiB
        if (match(s, e)) { for (Document d : pipe(s, event(s, e))) out.add(d); }
        s.pos = t;
        boolean inv = s.coll != null && s.coll.equals(e.coll) && s.db.equals(e.db) && (e.type.equals("drop") || e.type.equals("rename")) || s.db != null && s.db.equals(e.db) && e.type.equals("dropDatabase")
          || renamedTo(s, e);
        if (inv) { s.dead = true; Document d = new Document("_id", new Document("_data", t + "FF")).append("operationType", "invalidate").append("clusterTime", new BsonTimestamp(e.ts)); if (ver.v[0] >= 6) d.append("wallTime", e.wall); out.addAll(pipe(s, d)); s.scan++; return out; }
      }
      if (out.isEmpty()) { String now = tokenAt(nowTs()); if (now.compareTo(s.pos) > 0) s.pos = now; }
      return out;
    }
    List<Document> pipe(Stream_ s, Document d) {
      if (s.pipeline.isEmpty()) return List.of(d);
      MongoDatabase mdb = resolveDatabase(s.db == null ? "admin" : s.db);
      return Aggregation.fromPipeline(s.pipeline, this::resolveDatabase, mdb, null, NoopOplog.get()).runStagesAsStream(Stream.of(d)).collect(Collectors.toList());
    }
    boolean match(Stream_ s, Ev e) {
      if (e.type.equals("noop") || e.expanded && !Boolean.TRUE.equals(s.spec.get("showExpandedEvents"))) return false;
      if (s.db == null) return true;
      if (!s.db.equals(e.db)) return renamedTo(s, e);
      if (s.coll == null) return true;
      // A rename is told to who watches the new name, too, before it ends the stream (manual, "rename Event").
      return s.coll.equals(e.coll) || renamedTo(s, e);
    }
    boolean renamedTo(Stream_ s, Ev e) {
      if (s.coll == null || !e.type.equals("rename")) return false;
      Document to = (Document) e.extra.get("to");
      return s.db.equals(to.get("db")) && s.coll.equals(to.get("coll"));
    }
    Document event(Stream_ s, Ev e) {
      Document d = new Document("_id", new Document("_data", e.token())).append("operationType", e.type).append("clusterTime", new BsonTimestamp(e.ts));
      if (ver.v[0] >= 6) d.append("wallTime", e.wall);
      if (e.uuid != null && Boolean.TRUE.equals(s.spec.get("showExpandedEvents"))) d.append("collectionUUID", e.uuid);
      String fd = (String) s.spec.get("fullDocument"), fb = (String) s.spec.get("fullDocumentBeforeChange"); boolean im = e.coll != null && images(e.db + "." + e.coll);
      if (e.type.equals("insert") || e.type.equals("replace")) d.append("fullDocument", e.full);
      else if (e.type.equals("update") && fd != null && !fd.equals("default")) {
        if (fd.equals("updateLookup")) { MongoCollection<?> c = resolveDatabase(e.db).resolveCollection(e.coll, false); Document r = null; if (c != null && !(e.db + "." + e.coll).equals(hidden)) for (Document x : c.handleQuery(new Document("_id", e.id instanceof String || e.id instanceof Number || e.id instanceof ObjectId ? e.id : new Document("$eq", e.id)))) { r = x.cloneDeeply(); break; } d.append("fullDocument", r); }
        else if (im) d.append("fullDocument", e.full);
        else if (fd.equals("required")) throw new MongoServerError(47, "NoMatchingDocument", "PostImage was 'required' but not found"); else d.append("fullDocument", null);
      }
      Document ns = new Document("db", e.db); if (e.coll != null) ns.append("coll", e.coll); d.append("ns", ns);
      if (e.extra != null) d.appendAll(e.extra);
      if (e.id != null) d.append("documentKey", new Document("_id", e.id));
      if (e.desc != null) d.append("updateDescription", e.desc);
      if (e.lsid != null) d.append("lsid", e.lsid).append("txnNumber", e.txn);
      if (fb != null && !fb.equals("off") && (e.type.equals("update") || e.type.equals("replace") || e.type.equals("delete"))) {
        if (im) d.append("fullDocumentBeforeChange", e.before);
        else if (fb.equals("required")) throw new MongoServerError(47, "NoMatchingDocument", "PreImage was 'required' but not found"); else d.append("fullDocumentBeforeChange", null);
      }
      return d;
    }
  }

  public static void main(String[] a) throws Exception {
    String host = a.length > 1 ? a[1] : "127.0.0.1"; int port = Integer.parseInt(a.length > 0 ? a[0] : "37017");
    int[] v = VERSIONS.get(System.getProperty("mongo.version", "7.0"));
    V5 = v[0] >= 5; nextTs(); logStart = tokenAt(nowTs() - 1);
    Backend b = new Backend(host, port, new Ver(v)); MongoServer s = new MongoServer(b);
    s.bind(new InetSocketAddress(host, port), 1, 64);
    System.out.println("READY " + host + ":" + port + " as mongod " + new Ver(v).toVersionString());
    Thread tick = new Thread(() -> { while (true) { try { Thread.sleep(10_000); } catch (InterruptedException e) { return; } synchronized (LOCK) { nextTs(); LOCK.notifyAll(); } } }, "noop-writer"); tick.setDaemon(true); tick.start();
    Thread.currentThread().join();
  }
}
