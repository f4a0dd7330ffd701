package comap;

import java.util.Arrays;
import scala.Option;
import scala.collection.immutable.HashSet.HashSetCollision1;
import scala.collection.immutable.ListSet;
import scala.collection.mutable.FlatHashTable;
import scala.collection.mutable.HashSet;
import scienceworld.input.InputParser$;
import scienceworld.objects.electricalcomponent.PolarizedElectricalComponent;
import scienceworld.objects.electricalcomponent.UnpolarizedElectricalComponent;
import scienceworld.objects.portal.Portal;
import scienceworld.properties.ContainerProperties;
import scienceworld.struct.EnvObject;

/**
 * What is where, in the order in which the simulator's own code would tell it.
 *
 * <p>All things have the same hash code here ({@code -XX:hashCode=2}). In one of Scala's sets they
 * therefore lie one behind the other, from the place that belongs to that hash code on, and after the
 * end of its table from the start. Whether a thing is in a set can only be seen by comparing it with
 * all of them, which makes sets cost the square of their size. Here they cost what they hold: things
 * are noted one after the other, looked up by their identifiers, and put in Scala's order at the end.
 *
 * <p>That order: each table has room for {@link #ROOM} things behind that place, or is given up for a
 * larger one before it has as many. So the things beyond those come first. When a table is given up,
 * its things go into the next one in the order in which they were.
 */
@SuppressWarnings({"rawtypes", "unchecked"})
public final class Things {
    private static final int ROOM = 122;
    private static final int LOAD = 450;  // of 1000: Scala's own, after which a table is too full
    private static final int CAPACITY = 32;  // Scala's own, of a new set
    private static final int FEW = 8;  // so many are looked through rather than looked up

    private final boolean turning;  // whether this stands for a mutable set; others keep their order
    private EnvObject[] noted = new EnvObject[FEW];
    private int size;
    private int capacity = CAPACITY;
    private EnvObject[] known;  // by identifier; none while there are few

    private Things(boolean turning) {
        this.turning = turning;
    }

    /** Goes before {@code EnvObject.getContainedObjects}. */
    public static scala.collection.immutable.Set contained(EnvObject thing, boolean hidden) {
        return chosen(thing.containedObjects(), hidden);
    }

    /** Goes before {@code EnvObject.getPortals}. */
    public static scala.collection.immutable.Set portals(EnvObject thing, boolean hidden) {
        return chosen(thing.portals(), hidden);
    }

    /** Goes before {@code EnvObject.getContainedObjectsAndPortals}. */
    public static scala.collection.immutable.Set both(EnvObject thing, boolean hidden) {
        if (hidden) {
            return immutable(joined(thing));
        }
        Things out = new Things(false);
        out.addAll(contained(thing, false));
        out.addAll(entries(thing.portals()));
        return immutable(out.inOrder());
    }

    /** Goes before {@code EnvObject.getContainedObjectsAndPortalsRecursive}. */
    public static scala.collection.immutable.Set inside(
            EnvObject thing, boolean hidden, boolean connections) {
        return immutable(allInside(thing, hidden, connections).inOrder());
    }

    /** Goes before {@code EnvObject.getContainedAccessibleObjects}. */
    public static scala.collection.immutable.Set accessible(
            EnvObject thing, boolean hidden, boolean portals) {
        return immutable(inReach(thing, hidden, portals).inOrder());
    }

    /** Goes before {@code InputParser.collectAccessibleObjects}. */
    public static scala.collection.mutable.Set collectAccessible(
            InputParser$ parser, EnvObject thing, boolean hidden) {
        Things out = andNextDoor(thing, hidden);
        if (hidden || !thing.isHidden()) {
            out.addAll(inReach(thing, hidden, true).inOrder());
        }
        return out.mutable();
    }

    /** Goes before {@code InputParser.collectObjects}. */
    public static scala.collection.mutable.Set collect(
            InputParser$ parser, EnvObject thing, boolean hidden) {
        return collected(thing, hidden).mutable();
    }

    private static scala.collection.immutable.Set chosen(
            scala.collection.mutable.Set set, boolean hidden) {
        Object[] all = entries(set);
        if (hidden) {
            return immutable(all);
        }
        Things out = new Things(true);
        for (Object thing : all) {
            if (!((EnvObject) thing).isHidden()) {
                out.add((EnvObject) thing);
            }
        }
        return immutable(out.inOrder());
    }

    private static Object[] joined(EnvObject thing) {
        Object[] portals = entries(thing.portals());
        if (portals.length == 0 && ((HashSet) thing.containedObjects()).size() <= ROOM) {
            return entries(thing.containedObjects());
        }
        Things out = new Things(true);
        out.addAll(entries(thing.containedObjects()));
        out.addAll(portals);
        return out.inOrder();
    }

    private static Things allInside(EnvObject thing, boolean hidden, boolean connections) {
        Things out = new Things(true);
        Object[] contained = entries(thing.containedObjects());
        for (Object it : contained) {
            if (hidden || !((EnvObject) it).isHidden()) {
                out.add((EnvObject) it);
            }
        }
        Things connected = new Things(false);
        for (Object it : entries(thing.portals())) {
            if (hidden || !((EnvObject) it).isHidden()) {
                out.add((EnvObject) it);
                if (connections) {
                    connected.addAll(((Portal) it).getConnectionPoints());
                }
            }
        }
        for (Object it : contained) {
            if (hidden || !((EnvObject) it).isHidden()) {
                Object[] more = allInside((EnvObject) it, hidden, connections).inOrder();
                out = out.copy();
                out.addAll(more);
            }
        }
        out = out.copy();
        out.addAll(connected.inOrder());
        return out;
    }

    private static Things inReach(EnvObject thing, boolean hidden, boolean portals) {
        Things out = new Things(true);
        for (Object entry : entries(thing.containedObjects())) {
            EnvObject it = (EnvObject) entry;
            if (!hidden && it.isHidden()) {
                continue;
            }
            out.add(it);
            if (it instanceof PolarizedElectricalComponent) {
                out.add(((PolarizedElectricalComponent) it).anode());
                out.add(((PolarizedElectricalComponent) it).cathode());
            } else if (hidden || it instanceof UnpolarizedElectricalComponent) {
                out.addAny(it.terminal1());
                out.addAny(it.terminal2());
            }
            Option container = it.propContainer();
            if (container.isDefined() && ((ContainerProperties) container.get()).isOpen()) {
                out.addAll(inReach(it, hidden, portals).inOrder());
            }
        }
        if (portals) {
            for (Object it : entries(thing.portals())) {
                if (hidden || ((EnvObject) it).isHidden()) {  // sic
                    out.add((EnvObject) it);
                }
            }
        }
        return out;
    }

    private static Things collected(EnvObject thing, boolean hidden) {
        Things out = andNextDoor(thing, hidden);
        if (hidden || !thing.isHidden()) {
            for (Object it : joined(thing)) {
                out.addAll(collected((EnvObject) it, hidden).inOrder());
            }
        }
        return out;
    }

    private static Things andNextDoor(EnvObject thing, boolean hidden) {
        Things out = new Things(true);
        if (hidden || !thing.isHidden()) {
            out.add(thing);
        }
        for (Object portal : entries(thing.portals())) {
            out.add((EnvObject) portal);
            out.addAny(((Portal) portal).getConnectsTo(thing));
        }
        return out;
    }

    private void addAny(Option thing) {
        if (thing.isDefined()) {
            add((EnvObject) thing.get());
        }
    }

    private void addAll(Object[] things) {
        for (Object thing : things) {
            add((EnvObject) thing);
        }
    }

    private void addAll(scala.collection.immutable.Set things) {
        for (scala.collection.Iterator left = things.iterator(); left.hasNext(); ) {
            add((EnvObject) left.next());
        }
    }

    private void add(EnvObject thing) {
        if (isNew(thing)) {
            append(thing);
        }
    }

    private void append(EnvObject thing) {
        if (size == noted.length) {
            noted = Arrays.copyOf(noted, 2 * size);
        }
        noted[size++] = thing;
        if (turning && size >= (int) ((long) capacity * LOAD / 1000)) {
            capacity *= 2;
            if (size > ROOM) {
                noted = Arrays.copyOf(inOrder(), 2 * size, EnvObject[].class);
            }
        }
    }

    /** Returns whether a thing is none of these, and remembers it. */
    private boolean isNew(EnvObject thing) {
        long uuid = thing.uuid();
        if (known == null) {
            for (int i = 0; i < size; i++) {
                if (noted[i].uuid() == uuid) {
                    return false;
                }
            }
            if (size >= FEW) {
                known = new EnvObject[16 * FEW];
                for (int i = 0; i < size; i++) {
                    known[place(noted[i].uuid())] = noted[i];
                }
                known[place(uuid)] = thing;
            }
            return true;
        }
        if (2 * size > known.length) {
            EnvObject[] old = known;
            known = new EnvObject[4 * old.length];
            for (EnvObject it : old) {
                if (it != null) {
                    known[place(it.uuid())] = it;
                }
            }
        }
        int place = place(uuid);
        boolean isNew = known[place] == null;
        known[place] = thing;
        return isNew;
    }

    private int place(long uuid) {
        int last = known.length - 1;
        int place = (int) uuid & last;
        while (known[place] != null && known[place].uuid() != uuid) {
            place = (place + 1) & last;
        }
        return place;
    }

    /** Returns what Scala makes when it adds all of these to a new set, one after the other. */
    private Things copy() {
        if (size <= ROOM) {
            return this;  // they would come to lie as they do; and nobody needs the old ones
        }
        Things out = new Things(true);
        out.known = known;
        for (Object thing : inOrder()) {
            out.append((EnvObject) thing);
        }
        return out;
    }

    private Object[] inOrder() {
        Object[] out = new Object[size];
        int first = turning ? Math.max(0, size - ROOM) : 0;
        System.arraycopy(noted, size - first, out, 0, first);
        System.arraycopy(noted, 0, out, first, size - first);
        return out;
    }

    private scala.collection.mutable.Set mutable() {
        Object[] table = new Object[capacity];
        int threshold = (int) ((long) capacity * LOAD / 1000);
        int seed = Integer.bitCount(capacity - 1);
        HashSet out = new HashSet(
                new FlatHashTable.Contents(LOAD, table, size, threshold, seed, null));
        int place = out.index(System.identityHashCode(out));
        for (int i = 0; i < size; i++) {
            table[(place + i) & (capacity - 1)] = noted[i];
        }
        return out;
    }

    private static Object[] entries(scala.collection.mutable.Set set) {
        HashSet things = (HashSet) set;
        Object[] out = new Object[things.size()];
        int found = 0;
        for (Object thing : things.table()) {
            if (thing != null) {
                out[found++] = thing;
            }
        }
        return out;
    }

    private static scala.collection.immutable.Set immutable(Object[] it) {
        switch (it.length) {
            case 0:
                return scala.collection.immutable.Set.EmptySet$.MODULE$;
            case 1:
                return new scala.collection.immutable.Set.Set1(it[0]);
            case 2:
                return new scala.collection.immutable.Set.Set2(it[0], it[1]);
            case 3:
                return new scala.collection.immutable.Set.Set3(it[0], it[1], it[2]);
            case 4:
                return new scala.collection.immutable.Set.Set4(it[0], it[1], it[2], it[3]);
            default:
                ListSet list = ListSet.EmptyListSet$.MODULE$;
                for (Object thing : it) {
                    list = list.new Node(thing);
                }
                scala.collection.immutable.HashSet empty =
                        scala.collection.immutable.HashSet.EmptyHashSet$.MODULE$;
                return new HashSetCollision1(empty.computeHash(it[0]), list);
        }
    }
}
